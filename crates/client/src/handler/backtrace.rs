//! Where a handler failed: the call stack at the place where the error was made or the panic began.
//!
//! Nothing is captured unless somebody wants it: [`watched`] runs a handler and gives the last capture of its task. An
//! error is captured where it becomes a [`HandlerError`](super::HandlerError), which is at the `?` or the constructor in
//! the handler; a panic by a hook that the first use installs in front of the one that is there.

use std::backtrace::Backtrace;
use std::cell::RefCell;
use std::future::Future;
use std::sync::Once;

tokio::task_local! {
    static LAST: RefCell<Option<Backtrace>>;
}

/// Runs `work`; gives what it answers, and the stack of its last failure if it had one.
pub(crate) async fn watched<T>(work: impl Future<Output = T>) -> (T, Option<Backtrace>) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            capture();
            before(panic);
        }));
    });
    let run = async {
        let answer = work.await;
        let stack = LAST.with(|last| last.borrow_mut().take());
        (answer, stack)
    };
    LAST.scope(RefCell::new(None), run).await
}

/// Notes the call stack, where somebody wants it.
pub(super) fn capture() {
    // Not there: nobody watches. Borrowed: a failure while one is noted, which is not worth a second one.
    let _ = LAST.try_with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            *last = Some(Backtrace::force_capture());
        }
    });
}

/// A stack in one line, the application's own frames only: those of the runtime and of this crate say nothing.
pub(crate) fn in_one_line(stack: &Backtrace) -> String {
    one_line(&stack.to_string())
}

/// Frames are a line with number and name, and one with the place where debug information has it.
fn one_line(text: &str) -> String {
    let mut line = String::new();
    let mut lines = text.lines().map(str::trim).peekable();
    while let Some(part) = lines.next() {
        let Some((number, name)) = part.split_once(": ") else {
            continue;
        };
        let place = lines.next_if(|next| next.starts_with("at "));
        let is_frame = number.bytes().all(|byte| byte.is_ascii_digit());
        if !is_frame || is_foreign(name) || place.is_some_and(|place| is_foreign_place(&place[3..])) {
            continue;
        }
        if !line.is_empty() {
            line.push_str("; ");
        }
        line.push_str(without_generics(name));
        if let Some(place) = place {
            line.push(' ');
            line.push_str(place);
        }
    }
    line
}

fn is_foreign(name: &str) -> bool {
    const FOREIGN: [&str; 15] = [
        "std::",
        "core::",
        "alloc::",
        "tokio::",
        "futures_util::",
        "tracing::",
        "windjet_client::",
        "rust_begin_unwind",
        "rust_panic",
        "__rust",
        "_rust",
        "__libc",
        "__clone",
        "clone3",
        "start_thread",
    ];
    let bare = name.trim_start_matches(['<', '&', '(']);
    let bare = bare.strip_prefix("dyn ").unwrap_or(bare);
    FOREIGN.iter().any(|front| bare.starts_with(front))
}

/// Inlined functions are shown without their crate's name; the file tells them.
fn is_foreign_place(place: &str) -> bool {
    const HERE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/");
    let shown = place
        .strip_prefix("./")
        .map(|rest| match std::env::current_dir() {
            Ok(folder) => folder.join(rest).to_string_lossy().into_owned(),
            Err(_) => rest.to_owned(),
        });
    let place = shown.as_deref().unwrap_or(place);
    ["/rustc/", "/registry/src/", "/lib/rustlib/src/"]
        .iter()
        .any(|folder| place.contains(folder))
        || place.starts_with(HERE)
}

/// A name with the type parameters of its last part cut off, which may be longer than the whole header.
fn without_generics(name: &str) -> &str {
    match name.find('<') {
        Some(at) if at > 0 => name[..at].trim_end_matches(':'),
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_frames_of_the_application_are_shown() {
        let here = concat!(env!("CARGO_MANIFEST_DIR"), "/src/handler/error.rs");
        let text = format!(
            "   0: from<std::io::error::Error>\n             at {here}:61:9\n   1: orders::charge<T, U>::{{closure}}\n             \
             at /app/src/orders.rs:7:3\n   2: {{async_block#0}}<a>\n             at ./somewhere/worker.rs:9:1\n   3: poll<T>\n\
             at /rustc/0/library/core/src/future.rs:1:1\n   4: tokio::runtime::task::run\n   5: main\nnote: and a note: 7\n"
        );
        assert_eq!(
            one_line(&text),
            "orders::charge at /app/src/orders.rs:7:3; {async_block#0} at ./somewhere/worker.rs:9:1; main"
        );
    }
}
