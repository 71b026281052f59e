//! What a worker is given: one assignment with everything it needs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use windjet_protocol::jetstream::Timestamp;

use super::{TYPE_ASSIGN, is_default, or_default};
use crate::subjects::Layout;

/// How an action ends early.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cancelation {
    /// `TERMINATE` or `NOTIFY_THEN_TERMINATE`.
    #[serde(deserialize_with = "or_default")]
    pub mode: String,
    /// Time between the notice and the end.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub notify_period_seconds: i64,
}

/// A command to run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Action {
    /// The program.
    #[serde(deserialize_with = "or_default")]
    pub command: String,
    /// Its arguments.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub args: Vec<String>,
    /// Most time; 0 for no limit.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub timeout_seconds: i64,
    /// How it ends early.
    #[serde(skip_serializing_if = "is_default")]
    pub cancelation: Option<Cancelation>,
}

/// A file that is written before running.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EmbeddedFile {
    /// Name.
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    /// File name when it differs.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub filename: String,
    /// Content.
    #[serde(deserialize_with = "or_default")]
    pub data: String,
    /// Whether it can be executed.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub runnable: bool,
    /// `AUTO`, `LF` or `CRLF`.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub end_of_line: String,
}

/// What is entered before the task and left after it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Environment {
    /// Name.
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    /// Runs first.
    #[serde(skip_serializing_if = "is_default")]
    pub on_enter: Option<Action>,
    /// Runs last.
    #[serde(skip_serializing_if = "is_default")]
    pub on_exit: Option<Action>,
    /// Environment variables.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub variables: BTreeMap<String, String>,
    /// Files.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub embedded_files: Vec<EmbeddedFile>,
    /// Definitions of expressions, in order.
    #[serde(
        rename = "let",
        skip_serializing_if = "is_default",
        deserialize_with = "or_default"
    )]
    pub definitions: Vec<String>,
    /// Whether it belongs to the step, not the job.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub step_environment: bool,
}

/// One rule of a path map.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PathMapRule {
    /// `POSIX`, `WINDOWS` or `URI`.
    #[serde(deserialize_with = "or_default")]
    pub source_path_format: String,
    /// From.
    #[serde(deserialize_with = "or_default")]
    pub source_path: String,
    /// To.
    #[serde(deserialize_with = "or_default")]
    pub destination_path: String,
}

/// How a path map reaches the task.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PathDelivery {
    /// `swap_in_place`, `command_flags`, `environment`, `translation_file` or `stage_locally`.
    #[serde(deserialize_with = "or_default")]
    pub kind: String,
    /// Pattern.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub pattern: String,
    /// Variable.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub variable: String,
}

/// A path to copy in or out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StageEntry {
    /// The path.
    #[serde(deserialize_with = "or_default")]
    pub path: String,
    /// `IN`, `OUT` or `INOUT`.
    #[serde(deserialize_with = "or_default")]
    pub direction: String,
    /// File or folder.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub object_type: String,
}

/// The account of the operating system a task runs under; never a secret.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Isolation {
    /// User.
    #[serde(deserialize_with = "or_default")]
    pub user: String,
    /// Group.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub group: String,
}

/// One task for one worker.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AssignMsg {
    /// Wire version, compared for equality.
    #[serde(deserialize_with = "or_default")]
    pub version: String,
    /// Names the kind of message.
    #[serde(rename = "type", deserialize_with = "or_default")]
    pub kind: String,
    /// The task.
    #[serde(deserialize_with = "or_default")]
    pub task_id: String,
    /// Its job.
    #[serde(deserialize_with = "or_default")]
    pub job_id: String,
    /// Its step.
    #[serde(deserialize_with = "or_default")]
    pub step_id: String,
    /// This execution of it.
    #[serde(deserialize_with = "or_default")]
    pub attempt_id: String,
    /// For people.
    #[serde(deserialize_with = "or_default")]
    pub task_name: String,
    /// Only with expressions.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub job_name: String,
    /// Only with expressions.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub step_name: String,
    /// Whom it is for.
    #[serde(deserialize_with = "or_default")]
    pub worker_id: String,
    /// Server's clock.
    #[serde(deserialize_with = "or_default")]
    pub assigned_at: Timestamp,
    /// Site of the path map.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub compute_location: String,
    /// Account to run under.
    #[serde(skip_serializing_if = "is_default")]
    pub isolation: Option<Isolation>,
    /// Values of the task.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub parameters: BTreeMap<String, String>,
    /// Values of the job.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub job_parameters: BTreeMap<String, String>,
    /// Declared types of the task's.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub parameter_types: BTreeMap<String, String>,
    /// Declared types of the job's.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub job_parameter_types: BTreeMap<String, String>,
    /// Whether the template has expressions.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub expr: bool,
    /// Definitions of the step's template.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub step_template_let: Vec<String>,
    /// Definitions of the step's script.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub step_script_let: Vec<String>,
    /// What to run; nothing counts as success.
    #[serde(skip_serializing_if = "is_default")]
    pub on_run: Option<Action>,
    /// Files to write first.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub embedded_files: Vec<EmbeddedFile>,
    /// Entered in order, left in reverse.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub environments: Vec<Environment>,
    /// Path map.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub path_map: Vec<PathMapRule>,
    /// How the map is delivered.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub path_deliveries: Vec<PathDelivery>,
    /// What to copy.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "or_default")]
    pub staging: Vec<StageEntry>,
}

impl AssignMsg {
    /// One with its envelope filled in.
    #[must_use]
    pub fn new(layout: Layout) -> Self {
        Self {
            version: layout.version().to_owned(),
            kind: TYPE_ASSIGN.to_owned(),
            ..Self::default()
        }
    }
}
