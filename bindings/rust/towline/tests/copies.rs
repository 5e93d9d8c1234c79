//! Two agents of one process: data, notices, counters, bad input, and what happens to memory.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use towline::{
    Access, Agent, AgentOptions, BlockList, Blocks, Counter, Error, Fence, Layout, Memory, MemoryOwner, Notice, Peer,
    Plan, PlanOptions, Post, PostOptions, Progress, Region, RegionOptions, Status, StorageOptions, Timeout,
};

const PAGE: usize = 4096;
const PAGES: usize = 64;
const SOON: Duration = Duration::from_secs(10);

/// Two agents that know each other, with one region each.
struct Pair {
    source: Region,
    target: Region,
    mine: BlockList,
    theirs: BlockList,
    peer: Peer,
    writer: Agent,
    owner: Agent,
}

fn pages_of(address: u64) -> [Blocks; 1] {
    [Blocks::at(address, PAGE as u64).repeat(PAGES as u64, PAGE as u64)]
}

fn pair_with(owner: &AgentOptions, target: &RegionOptions) -> Pair {
    let writer = Agent::new("writer").unwrap();
    let owner = Agent::with_options("owner", owner).unwrap();
    let mut memory = Memory::allocate(PAGE * PAGES).unwrap();
    for (page, bytes) in memory.as_mut_slice().chunks_mut(PAGE).enumerate() {
        bytes.fill(page as u8 + 1);
    }
    let source = writer.register(memory, &RegionOptions::with_access(Access::ALL)).unwrap();
    let target = owner.register(Memory::allocate(PAGE * PAGES).unwrap(), target).unwrap();
    let peer = writer.connect(&owner.address().unwrap(), SOON).unwrap();
    let mine = writer.block_list(&pages_of(source.address())).unwrap();
    let theirs = peer.block_list(&pages_of(peer.regions().unwrap()[0].address)).unwrap();
    Pair { source, target, mine, theirs, peer, writer, owner }
}

fn pair() -> Pair {
    pair_with(&AgentOptions::default(), &RegionOptions::with_access(Access::ALL))
}

fn page(region: &Region, number: usize) -> Vec<u8> {
    let mut bytes = vec![0; PAGE];
    region.read_at(number * PAGE, &mut bytes).unwrap();
    bytes
}

#[test]
fn every_type_goes_to_any_thread() {
    fn any_thread<T: Send + Sync>() {}
    any_thread::<Agent>();
    any_thread::<BlockList>();
    any_thread::<Counter>();
    any_thread::<Error>();
    any_thread::<Memory>();
    any_thread::<Notice>();
    any_thread::<Peer>();
    any_thread::<Region>();
    any_thread::<Plan>();
    any_thread::<Post>();
}

#[test]
fn picked_pages_arrive_and_the_notice_after_them() {
    let pair = pair();
    let options = PostOptions { notice: b"req-17", ..Default::default() };
    let write = pair.writer.copy(pair.mine.pick(&[3, 1]), pair.theirs.pick(&[10, 11]), &options).unwrap();
    write.wait(SOON).unwrap();

    let notice = pair.owner.receive(SOON).unwrap();
    assert_eq!((notice.bytes(), notice.peer_name()), (&b"req-17"[..], "writer"));
    assert_eq!(page(&pair.target, 10), vec![4; PAGE]);
    assert_eq!(page(&pair.target, 11), vec![2; PAGE]);
    assert_eq!(page(&pair.target, 12), vec![0; PAGE]);

    let outcome = write.outcome().unwrap();
    assert_eq!((outcome.status, outcome.bytes, outcome.failed.len()), (Status::OK, 2 * PAGE as u64, 0));
    assert!(outcome.fenced_locally && outcome.fenced_remotely);
    let plan = pair.writer.plan(&pair.mine, &pair.theirs, &PlanOptions::default()).unwrap();
    assert!(plan.route().unwrap().contains("\"backend\""));
    assert_eq!(plan.backend().unwrap(), write.backend().unwrap());
}

#[test]
fn a_read_brings_pages_here_and_counts_at_the_peer() {
    let pair = pair();
    pair.target.write_at(5 * PAGE, &[77; PAGE]).unwrap();
    let counter = pair.owner.counter(40).unwrap();
    let options = PostOptions { count: Some((counter.key(), 2)), ..Default::default() };
    for _ in 0..2 {
        pair.writer.copy(pair.theirs.pick(5..6), pair.mine.pick(0..1), &options).unwrap().wait(SOON).unwrap();
    }
    counter.wait(44, SOON).unwrap();
    assert_eq!(page(&pair.source, 0), vec![77; PAGE]);
    pair.peer.add(counter.key(), 1).unwrap();
    counter.wait(45, SOON).unwrap();
    assert_eq!(counter.wait(46, Timeout::NOW).unwrap_err().status(), Status::NOT_YET);
}

#[test]
fn bad_input_is_an_error_with_values() {
    let pair = pair();
    let options = PostOptions::default();
    let refused = |agent: &Agent, from: &[u32], to: &[u32]| {
        agent.copy(pair.mine.pick(from), pair.theirs.pick(to), &options).map(drop).unwrap_err()
    };

    let error = refused(&pair.writer, &[64], &[0]);
    assert_eq!(error.status(), Status::OUT_OF_RANGE);
    assert!(error.message().contains("64"), "{error}");
    assert_eq!(refused(&pair.writer, &[0, 1], &[0]).status(), Status::MISMATCH);

    let error = refused(&pair.owner, &[0], &[0]);
    assert_eq!(error.status(), Status::INVALID_ARGUMENT);
    assert!(error.message().contains("another agent"), "{error}");

    let unknown = PlanOptions { backend: "carrier-pigeon".into(), ..Default::default() };
    let error = pair.writer.plan(&pair.mine, &pair.theirs, &unknown).map(drop).unwrap_err();
    assert!(error.message().contains("pigeon"), "{error}");

    assert_eq!(Agent::new("a\0b").unwrap_err().status(), Status::INVALID_ARGUMENT);
    assert_eq!(pair.writer.add_peer(b"junk").unwrap_err().status(), Status::PROTOCOL);
    assert_eq!(pair.writer.find_peer("nobody").unwrap_err().status(), Status::NOT_FOUND);
    assert_eq!(pair.source.read_at(PAGE * PAGES - 1, &mut [0; 2]).unwrap_err().status(), Status::OUT_OF_RANGE);
    assert_eq!(pair.source.write_at(usize::MAX, &[0; 2]).unwrap_err().status(), Status::OUT_OF_RANGE);
    let many = Blocks::at(0, 1).repeat(1, 1).repeat(1, 1).repeat(1, 1).repeat(1, 1).repeat(1, 1);
    assert_eq!(pair.writer.block_list(&[many]).unwrap_err().status(), Status::LIMIT_EXCEEDED);
    assert_eq!(pair.writer.receive(Timeout::NOW).unwrap_err().status(), Status::NOT_YET);
}

#[test]
fn a_connection_that_can_not_be_made_ends_by_its_deadline() {
    let agent = Agent::new("alone").unwrap();
    let begin = Instant::now();
    let gone = Agent::new("gone").unwrap().address().unwrap();
    // A time that has passed means "now", not the library's default of 30 s.
    assert!(agent.connect(&gone, Instant::now()).is_err());
    assert!(begin.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_region_is_its_agents_own_by_default() {
    let owner = Agent::new("owner").unwrap();
    let visitor = Agent::new("visitor").unwrap();
    let own = owner.register(vec![0u8; PAGE], &RegionOptions::default()).unwrap();
    let both = RegionOptions::with_access(Access::READ | Access::WRITE);
    let open = owner.register(vec![0u8; PAGE], &both).unwrap();
    let peer = visitor.add_peer(&owner.metadata(&[]).unwrap()).unwrap();
    assert!(peer.block_list(&[Blocks::at(open.address(), PAGE as u64)]).is_ok());
    let refused = peer.block_list(&[Blocks::at(own.address(), PAGE as u64)]).unwrap_err();
    assert_eq!(refused.status(), Status::OUT_OF_RANGE);
}

#[test]
fn access_rights_hold() {
    let read_only = RegionOptions { access: Access::READ, ..Default::default() };
    let pair = pair_with(&AgentOptions::default(), &read_only);
    let region = pair.peer.regions().unwrap()[0];
    assert!(region.readable && !region.writable);
    let error = pair.writer.copy(&pair.mine, &pair.theirs, &PostOptions::default()).map(drop).unwrap_err();
    assert_eq!(error.status(), Status::PERMISSION_DENIED);
}

/// Memory that tells when it is freed.
struct Watched(Vec<u8>, Arc<AtomicBool>);

// SAFETY: as for the vector.
unsafe impl MemoryOwner for Watched {
    fn address(&self) -> NonNull<u8> {
        self.0.address()
    }
    fn bytes(&self) -> usize {
        self.0.len()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.1.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_region_keeps_its_memory_and_frees_it_when_it_is_deregistered() {
    let agent = Agent::new("owner").unwrap();
    let freed = Arc::new(AtomicBool::new(false));
    let region =
        agent.register(Watched(vec![0; PAGE], freed.clone()), &RegionOptions::with_access(Access::ALL)).unwrap();
    assert!(!freed.load(Ordering::SeqCst));
    region.deregister(SOON).map_err(|(_, error)| error).unwrap();
    assert!(freed.load(Ordering::SeqCst));
}

#[test]
fn a_dropped_region_does_not_block_and_its_memory_is_freed_in_the_end() {
    let pair = pair();
    let freed = Arc::new(AtomicBool::new(false));
    let region =
        pair.owner.register(Watched(vec![0; PAGE], freed.clone()), &RegionOptions::with_access(Access::ALL)).unwrap();
    pair.peer.refresh(SOON).unwrap();
    let theirs = pair.peer.block_list(&[Blocks::at(region.address(), PAGE as u64)]).unwrap();
    let plan = pair.writer.plan(&theirs, &pair.mine, &PlanOptions::default()).unwrap();
    let read = || plan.post(&PostOptions { to: (0..1).into(), ..Default::default() })?.wait(SOON);
    read().unwrap();
    let begin = Instant::now();
    drop(region);
    assert!(begin.elapsed() < Duration::from_secs(1));
    let until = Instant::now() + SOON;
    while !freed.load(Ordering::SeqCst) {
        assert!(Instant::now() < until, "the memory was never freed");
        std::thread::yield_now();
    }
    assert!(read().is_err(), "a region that is gone can't be read");
}

/// Memory whose end panics: the application's mistake.
struct Broken(Watched);

// SAFETY: as for the vector in it.
unsafe impl MemoryOwner for Broken {
    fn address(&self) -> NonNull<u8> {
        self.0.address()
    }
    fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

impl Drop for Broken {
    fn drop(&mut self) {
        panic!("the application's memory is broken");
    }
}

/// Reads a region of `owner` through shared memory, and lets go of it only when it is driven.
fn reader_of(owner: &Agent, region: &Region) -> Agent {
    let options = AgentOptions { progress: Progress::CALLER, backends: "shm".into(), ..Default::default() };
    let reader = Agent::with_options("reader", &options).unwrap();
    let mine = reader.register(vec![0; PAGE], &RegionOptions::default()).unwrap();
    let into = reader.block_list(&[Blocks::at(mine.address(), PAGE as u64)]).unwrap();
    let peer = reader.connect(&owner.address().unwrap(), SOON).unwrap();
    let from = peer.block_list(&[Blocks::at(region.address(), PAGE as u64)]).unwrap();
    reader.copy(&from, &into, &PostOptions::default()).unwrap().wait(SOON).unwrap();
    reader
}

#[test]
fn memory_whose_end_panics_does_not_take_that_of_other_regions_with_it() {
    let owner = Agent::new("owner").unwrap();
    let freed: [Arc<AtomicBool>; 3] = Default::default();
    let watched = |number: usize| Watched(vec![0; PAGE], freed[number].clone());
    let access = RegionOptions::with_access(Access::ALL);
    let broken = owner.register(Broken(watched(0)), &access).unwrap();
    let held = owner.register(watched(1), &access).unwrap();
    let later = owner.register(watched(2), &access).unwrap();
    let (of_broken, of_held, of_later) =
        (reader_of(&owner, &broken), reader_of(&owner, &held), reader_of(&owner, &later));
    let wait_for = |number: usize, reader: &Agent| {
        let until = Instant::now() + SOON;
        while !freed[number].load(Ordering::SeqCst) {
            assert!(Instant::now() < until, "memory {number} was never freed");
            reader.progress().unwrap();
        }
    };
    drop(broken);
    drop(held);
    wait_for(0, &of_broken);
    drop(later);
    wait_for(2, &of_later);
    assert!(!freed[1].load(Ordering::SeqCst), "memory was freed that a peer has mapped");
    wait_for(1, &of_held);
}

#[test]
fn an_agent_lives_as_long_as_what_was_made_from_it() {
    let pair = pair();
    let Err(owner) = pair.owner.clone().close() else { panic!("closed under a region's feet") };
    drop(owner);
    drop(pair.owner);
    pair.writer.copy(&pair.mine, &pair.theirs, &PostOptions::default()).unwrap().wait(SOON).unwrap();
    assert_eq!(page(&pair.target, 63), vec![64; PAGE]);
    assert!(Agent::new("unused").unwrap().close().is_ok());
}

#[test]
fn a_forgotten_peer_ends_its_lists() {
    let pair = pair();
    let other = pair.peer.clone();
    pair.peer.remove().unwrap();
    let error = pair.writer.copy(&pair.mine, &pair.theirs, &PostOptions::default()).map(drop).unwrap_err();
    assert_eq!(error.status(), Status::STALE);
    assert_eq!(other.name(), "owner");
}

#[test]
fn a_cancelled_post_says_so_and_fences() {
    let pair = pair();
    let post = pair.writer.copy(&pair.mine, &pair.theirs, &PostOptions::default()).unwrap();
    post.cancel(); // may come too late
    let status = post.poll();
    assert!(status == Status::OK || status == Status::CANCELLED, "{status}");
    post.wait_fenced(Fence::Both, SOON).unwrap();
}

#[test]
fn pages_go_to_a_file_and_back() {
    let folder = std::env::temp_dir().join(format!("towline-rust-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let uri = format!("file:{}/pages.bin", folder.display());
    let pair = pair();
    let bytes = (PAGE * PAGES) as u64;
    assert!(pair.writer.query_storage(&uri).unwrap().is_none());
    let options = StorageOptions { create: true, bytes, ..Default::default() };
    let file = pair.writer.register_storage(&uri, &options).unwrap();
    let whole = file.blocks(0, bytes).unwrap();
    let there = pair.writer.block_list(&[whole]).unwrap();
    pair.writer.copy(&pair.mine, &there, &PostOptions::default()).unwrap().wait(SOON).unwrap();
    file.commit(SOON).unwrap();
    assert_eq!(std::fs::read(folder.join("pages.bin")).unwrap(), pair.source_bytes());
    assert_eq!(pair.writer.query_storage(&uri).unwrap().unwrap().bytes, bytes);
    assert!(file.blocks(1, bytes).is_err());
    assert_eq!(file.read_at(0, &mut [0]).unwrap_err().status(), Status::UNSUPPORTED);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn pages_of_a_file_have_places_in_a_layout() {
    let folder = std::env::temp_dir().join(format!("towline-rust-layout-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let uri = format!("file:{}/pages.bin", folder.display());
    let pair = pair();
    let layout = Layout::packed(PAGE as u64, &[PAGES as u64]);
    let options = StorageOptions { create: true, name: "spilled", layout: Some(layout), ..Default::default() };
    let file = pair.writer.register_storage(&uri, &options).unwrap();
    let there = file.list().unwrap();
    assert_eq!(there.layout().unwrap().unwrap().counts(), &[PAGES as u64]);
    let plan = pair.writer.plan(&pair.mine, &there, &Default::default()).unwrap();
    plan.post(&Default::default()).unwrap().wait(SOON).unwrap();
    assert_eq!(std::fs::read(folder.join("pages.bin")).unwrap(), pair.source_bytes());
    assert!(pair.writer.register_storage(&uri, &options).unwrap_err().status() == Status::ALREADY_EXISTS);
    std::fs::remove_dir_all(&folder).unwrap();
}

impl Pair {
    fn source_bytes(&self) -> Vec<u8> {
        (0..PAGES).flat_map(|number| page(&self.source, number)).collect()
    }
}

#[test]
fn a_refused_message_and_a_wait_that_failed_say_why() {
    let (agent, owner) = (Agent::new("agent").unwrap(), Agent::new("owner").unwrap());
    let peer = agent.connect(&owner.address().unwrap(), SOON).unwrap();
    let long = peer.send(&[0; 65_537]).unwrap_err();
    assert!(long.message().contains("65537"), "{long:?}");
    let tagged = peer.send_tagged(7, &[0; 65_537]).unwrap_err();
    assert!(tagged.message().contains("65537"), "{tagged:?}");
    let none = peer.add(0, 1).unwrap_err();
    assert!(none.message().len() > "add: invalid argument".len(), "{none:?}");
    let early = agent.receive(Timeout::NOW).unwrap_err();
    assert_eq!(early.message(), "receive: not yet: the wait has ended, what it waits for goes on");
}
