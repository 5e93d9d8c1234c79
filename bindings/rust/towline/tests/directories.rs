//! Agents find one another in an etcd, which the tests start. Without one scripts/run-rust-tests leaves them out, and says so.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures_lite::future::{block_on, poll_once};
use towline::directory::{Change, PutOptions};
use towline::{Access, Agent, Memory, RegionOptions, Status};

const SOON: Duration = Duration::from_secs(60);

struct Etcd {
    process: Child,
    folder: PathBuf,
    address: String,
}

impl Etcd {
    fn start(name: &str) -> Etcd {
        let folder = std::env::temp_dir().join(format!("towline-rust-etcd-{name}-{}", std::process::id()));
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let (address, peers) = (free(), free());
        let url = |address: &str| format!("http://{address}");
        let process = Command::new("etcd")
            .args(["--log-level", "error", "--data-dir", folder.to_str().unwrap()])
            .args(["--listen-client-urls", &url(&address), "--advertise-client-urls", &url(&address)])
            .args(["--listen-peer-urls", &url(&peers), "--initial-advertise-peer-urls", &url(&peers)])
            .args(["--initial-cluster", &format!("default={}", url(&peers))])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("etcd can't be started: scripts/install-deps installs it");
        Etcd { process, folder, address: format!("etcd://{address}/rust") }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn agent(name: &str) -> Agent {
    Agent::new(name).unwrap()
}

#[test]
fn keys_are_put_found_watched_and_removed() {
    let etcd = Etcd::start("keys");
    let agent = agent("keeper");
    let directory = agent.directory(&etcd.address).unwrap();
    let limit = Some(SOON.into());
    let leased = PutOptions { leased: true, create: true };
    directory.put("a/1", b"one", leased, limit).unwrap().wait().unwrap();
    block_on(directory.put("a/2", b"", PutOptions::default(), limit).unwrap().done()).unwrap();
    let again = directory.put("a/1", b"two", leased, limit).unwrap().wait().unwrap_err();
    assert_eq!(again.status(), Status::ALREADY_EXISTS);
    assert!(again.message().contains("a/1"), "{again}");

    let one = block_on(directory.get("a/1", false, limit).unwrap().done()).unwrap();
    assert_eq!((one.key.as_str(), one.value.as_slice()), ("a/1", b"one".as_slice()));
    let all = directory.list("a/", limit).unwrap().wait().unwrap();
    assert_eq!(all.iter().map(|entry| entry.key.as_str()).collect::<Vec<_>>(), ["a/1", "a/2"]);
    assert_eq!(directory.get("b", false, limit).unwrap().wait().unwrap_err().status(), Status::NOT_FOUND);

    let mut watch = directory.watch("a/").unwrap();
    let put = |change: Change| matches!(change, Change::Put(_));
    assert!(put(block_on(watch.next_async()).unwrap()));
    assert!(put(watch.next(SOON).unwrap().unwrap()));
    assert_eq!(block_on(watch.next_async()).unwrap(), Change::Synced);
    directory.delete("a/1", limit).unwrap().wait().unwrap();
    assert_eq!(block_on(watch.next_async()).unwrap(), Change::Gone("a/1".into()));
    assert_eq!(watch.next(Duration::from_millis(1)).unwrap(), None);
    assert!(directory.info().unwrap().contains("127.0.0.1"));
}

#[test]
fn an_agent_is_found_by_its_name_once_it_is_published() {
    let etcd = Etcd::start("names");
    let (owner, seeker) = (agent("owner"), agent("seeker"));
    let _cache = owner.register(Memory::allocate(4096).unwrap(), &RegionOptions::with_access(Access::READ)).unwrap();
    let found = seeker.directory(&etcd.address).unwrap().fetch("owner", true, Some(SOON.into())).unwrap();
    assert!(!found.is_done());
    let published = owner.directory(&etcd.address).unwrap();
    published.publish(&[], Some(SOON.into())).unwrap().wait().unwrap();
    let peer = block_on(found.done()).unwrap();
    assert_eq!((peer.name(), peer.regions().unwrap().len()), ("owner", 1));
    published.unpublish(Some(SOON.into())).unwrap().wait().unwrap();
}

// No server answers: the call ends by its deadline, and says which server it asked.
#[test]
fn a_directory_that_is_not_there_is_named_by_the_deadline() {
    let agent = agent("lonely");
    let directory = agent.directory("etcd://127.0.0.1:1/rust").unwrap();
    let began = Instant::now();
    let call = directory.get("a", false, Some(Duration::from_millis(300).into())).unwrap();
    let error = block_on(call.done()).unwrap_err();
    assert!(began.elapsed() >= Duration::from_millis(300) && began.elapsed() < SOON, "{error}");
    assert!(error.message().contains("127.0.0.1:1"), "{error}");
}

#[test]
fn a_quiet_watch_can_be_asked_any_number_of_times() {
    let etcd = Etcd::start("quiet");
    let agent = agent("watcher");
    let directory = agent.directory(&etcd.address).unwrap();
    let mut watch = directory.watch("quiet/").unwrap();
    assert_eq!(block_on(watch.next_async()).unwrap(), Change::Synced);
    for _ in 0..20_000 {
        // More than the queue of an agent's futures holds.
        assert!(block_on(poll_once(watch.next_async())).is_none());
    }
    let put = directory.put("quiet/1", b"one", PutOptions::default(), Some(SOON.into())).unwrap();
    block_on(put.done()).unwrap();
    assert!(matches!(block_on(watch.next_async()).unwrap(), Change::Put(entry) if entry.key == "quiet/1"));
}
