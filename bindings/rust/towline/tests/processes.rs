//! A peer in another process that is killed: posts end, and memory comes back.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use towline::{Access, Agent, Blocks, Memory, PlanOptions, PostOptions, RegionOptions, Status, Timeout};

const BYTES: u64 = 64 << 20;
const SOON: Duration = Duration::from_secs(10);

/// Runs in the child: owns memory until its standard input ends.
#[test]
fn child() {
    if std::env::var_os("CHILD_OF_TEST").is_none() {
        return;
    }
    let agent = Agent::new("child").unwrap();
    let _region =
        agent.register(Memory::allocate(BYTES as usize).unwrap(), &RegionOptions::with_access(Access::ALL)).unwrap();
    println!("\naddress {}", agent.address().unwrap());
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

fn start() -> (Child, String) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env("CHILD_OF_TEST", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(|line| line.ok());
    let told = lines.find_map(|line| line.strip_prefix("address ").map(str::to_owned));
    if told.is_none() {
        let _ = child.kill();
        let _ = child.wait();
    }
    (child, told.expect("the child told no address"))
}

#[test]
fn a_killed_peer_ends_what_is_in_flight_and_memory_comes_back() {
    for backend in ["tcp", "shm"] {
        let (mut child, address) = start();
        let agent = Agent::new("parent").unwrap();
        let region = agent
            .register(Memory::allocate(BYTES as usize).unwrap(), &RegionOptions::with_access(Access::ALL))
            .unwrap();
        let peer = agent.connect(&address, SOON).unwrap();
        let blocks = |address| [Blocks::at(address, 4096).repeat(BYTES / 4096, 4096)];
        let mine = agent.block_list(&blocks(region.address())).unwrap();
        let theirs = peer.block_list(&blocks(peer.regions().unwrap()[0].address)).unwrap();
        let options = PlanOptions { backend: backend.into(), ..Default::default() };
        let plan = agent.plan(&mine, &theirs, &options).unwrap();
        let all = PostOptions::default();
        plan.post(&all).unwrap().wait(SOON).unwrap();

        let begin = Instant::now();
        let mut last = plan.post(&all);
        child.kill().unwrap();
        child.wait().unwrap();
        // The one in flight may have been done; a later one can't be.
        let error = loop {
            match last.and_then(|post| post.wait(SOON)) {
                Ok(_) => assert!(begin.elapsed() < SOON, "{backend}: posts to a dead peer go on"),
                Err(error) => break error,
            }
            last = plan.post(&all);
        };
        let expected = [Status::PEER_LOST, Status::UNREACHABLE, Status::STALE];
        assert!(expected.contains(&error.status()), "{backend}: {error:?}");
        assert!(begin.elapsed() < Duration::from_secs(5), "{backend}: noticed after {:?}", begin.elapsed());
        drop(plan);
        region.deregister(SOON).map_err(|(_, error)| error).unwrap();
        assert!(agent.receive(Timeout::NOW).is_err());
    }
}
