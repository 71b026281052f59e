//! The conformance suite.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;
use windjet_mq::mqtest::{BUDGET, Capabilities, Instance};
use windjet_mq::nats::ExternalNats;
use windjet_mq::{Broker, Ctx, ErrorKind, PublishOptions, Publisher as _, TenantId, Topic, async_trait};

use super::{Cluster, topology};

struct ExternalInstance {
    cluster: Cluster,
    broker: ExternalNats,
}

windjet_mq::mq_conformance! {
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn instance() -> ExternalInstance {
        let cluster = Cluster::start(topology()).await;
        let broker = cluster.broker().await;
        for tenant in ["acme", "globex"] {
            broker.set_max_bytes(&Ctx::new(), &TenantId::parse(tenant).unwrap(), BUDGET).await.unwrap();
        }
        ExternalInstance { cluster, broker }
    }
}

#[async_trait]
impl Instance for ExternalInstance {
    fn broker(&self) -> Arc<dyn Broker> {
        Arc::new(self.broker.clone())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    async fn end_delivery(&self) {
        for (stream, durable) in self.cluster.units() {
            self.cluster
                .operate(|operator| operator.delete_consumer(&stream, &durable).unwrap());
        }
    }

    async fn fill(&self, tenant: &TenantId) -> bool {
        let topology = &self.cluster.topology;
        for partition in 0..topology.partitions {
            let stream = topology.partition_stream(partition);
            let shrink = |config: &mut serde_json::Value| config["max_bytes"] = json!(4096);
            self.cluster
                .operate(|operator| operator.update_stream(&stream, shrink).unwrap());
        }
        let topic = Topic::new(tenant.clone(), "filler");
        for size in [1024, 1] {
            loop {
                let data = Bytes::from(vec![b'x'; size]);
                let published = self
                    .broker
                    .publish(&Ctx::new(), &topic, data, PublishOptions::new())
                    .await;
                if let Err(error) = published {
                    assert!(error.is(ErrorKind::QueueFull), "{error:#}");
                    break;
                }
            }
        }
        true
    }
}
