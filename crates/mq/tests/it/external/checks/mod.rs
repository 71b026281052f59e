//! Every row of the table of what is checked (docs/mq-topology.md), provoked once on the real server and once mended.
//!
//! The rows stand in [`streams`] and [`durables`] with what an operator would have to do wrong. Two kinds of things a server does
//! not let happen, or is not, get a lie from the relay before it: another version, and streams that change between two requests.

mod bench;
mod durables;
mod replicas;
mod streams;

use windjet_mq::nats::{Finding, Severity, check_topology};
use windjet_testkit::page;

use self::bench::Bench;
use super::topology;

/// A line of the table, and how it comes about.
#[derive(Clone, Copy)]
struct Row {
    /// What the table calls the object.
    object: &'static str,
    field: &'static str,
    when: &'static str,
    severity: Severity,
    /// What the finding calls the object.
    on: &'static str,
    /// What its problem says, among other things.
    says: &'static str,
    wrong: Wrong,
}

/// What is done wrong.
#[derive(Clone, Copy)]
enum Wrong {
    /// Something on one server.
    By(fn(&mut Bench)),
    /// Copies of a stream, which needs three servers.
    Copies(&'static str, u64),
}

impl Row {
    fn is(&self, finding: &Finding) -> bool {
        finding.severity == self.severity
            && finding.object == self.on
            && finding.field == self.field
            && finding.problem.contains(self.says)
    }

    fn name(&self) -> String {
        format!("{}: {}: {}", self.object, self.field, self.when)
    }
}

fn required(
    object: &'static str,
    field: &'static str,
    when: &'static str,
    on: &'static str,
    says: &'static str,
    wrong: fn(&mut Bench),
) -> Row {
    let (severity, wrong) = (Severity::Required, Wrong::By(wrong));
    Row {
        object,
        field,
        when,
        severity,
        on,
        says,
        wrong,
    }
}

fn recommended(
    object: &'static str,
    field: &'static str,
    when: &'static str,
    on: &'static str,
    says: &'static str,
    wrong: fn(&mut Bench),
) -> Row {
    Row {
        severity: Severity::Recommended,
        ..required(object, field, when, on, says, wrong)
    }
}

/// Makes each row's mistake, finds exactly that it is there, mends it, and finds that it is gone.
async fn provoke(rows: Vec<Row>) {
    let mut bench = Bench::start(topology()).await;
    let well = check_topology(bench.config()).await.unwrap();
    for row in rows {
        let Wrong::By(act) = row.wrong else { continue };
        assert!(
            !well.iter().any(|finding| row.is(finding)),
            "{}: {well:#?}",
            row.name()
        );
        act(&mut bench);
        let found = check_topology(bench.config()).await.unwrap();
        assert!(
            found.iter().any(|finding| row.is(finding)),
            "{}: {found:#?}",
            row.name()
        );
        bench.mend();
        let found = check_topology(bench.config()).await.unwrap();
        assert_eq!(found, well, "{}", row.name());
    }
}

fn all() -> Vec<Row> {
    let rows = [
        streams::server(),
        streams::partitions(),
        durables::configured(),
        durables::outside(),
        streams::history(),
        streams::dead_letters(),
        streams::bucket(),
    ];
    rows.concat()
}

#[test]
fn the_page_lists_what_is_provoked() {
    let rows = all().into_iter().map(|row| {
        let severity = row.severity.to_string();
        [row.object, &format!("`{}`", row.field), row.when, &severity].map(str::to_owned)
    });
    let rows: Vec<Vec<String>> = rows.map(Vec::from).collect();
    let table = page::rows(&page::read("mq-topology.md").unwrap(), "What is checked").unwrap();
    assert_eq!(table[1..], rows);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_row_of_servers_and_partitions_is_found_and_goes_once_mended() {
    provoke([streams::server(), streams::partitions()].concat()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_row_of_durables_is_found_and_goes_once_mended() {
    provoke([durables::configured(), durables::outside()].concat()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_row_of_the_other_streams_is_found_and_goes_once_mended() {
    provoke([streams::history(), streams::dead_letters(), streams::bucket()].concat()).await;
}
