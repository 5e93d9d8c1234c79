//! What must wait for a fence before it can be freed, and was dropped by someone who must not wait.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::mpsc::{channel, Sender};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

/// A dropped resource. `retry` waits at most the given time and says whether it is gone.
pub(crate) trait Corpse: Send {
    fn retry(&mut self, wait: Duration) -> bool;
}

const ROUND: Duration = Duration::from_millis(100);

/// Frees it later, on a thread that is started when it is first needed. If there can be no thread, it is leaked: its
/// memory may still be in use.
pub(crate) fn free_later(corpse: Box<dyn Corpse>) {
    type Queue = Mutex<Sender<Box<dyn Corpse>>>;
    static THREAD: OnceLock<Option<Queue>> = OnceLock::new();
    let sender = THREAD.get_or_init(|| {
        let (sender, receiver) = channel::<Box<dyn Corpse>>();
        let run = move || {
            let mut waiting: Vec<Box<dyn Corpse>> = Vec::new();
            loop {
                if waiting.is_empty() {
                    match receiver.recv() {
                        Ok(corpse) => waiting.push(corpse),
                        Err(_) => return,
                    }
                }
                waiting.extend(receiver.try_iter());
                for mut corpse in std::mem::take(&mut waiting) {
                    if !corpse.retry(ROUND) {
                        waiting.push(corpse);
                        continue;
                    }
                    // Its memory's end is the application's code. A panic must not end the thread: it would drop the others,
                    // which are still in use.
                    let _ = catch_unwind(AssertUnwindSafe(|| drop(corpse)));
                }
            }
        };
        std::thread::Builder::new().name("towline-reaper".into()).spawn(run).ok().map(|_| Mutex::new(sender))
    });
    match sender {
        Some(sender) => {
            let sender = sender.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            if let Err(unsent) = sender.send(corpse) {
                std::mem::forget(unsent);
            }
        }
        None => std::mem::forget(corpse),
    }
}
