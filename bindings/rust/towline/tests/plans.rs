//! Plans, posts and groups between two agents of one process.

use std::time::Duration;

use futures_lite::future::{block_on, zip};
use towline::{
    Access, Agent, Blocks, GroupOptions, Memory, Plan, PlanOptions, PostOptions, Priority, Region, RegionOptions,
    Status, Timeout,
};

const PAGE: usize = 4096;
const PAGES: usize = 64;
const SOON: Duration = Duration::from_secs(10);

struct Pair {
    target: Region,
    plan: Plan,
    writer: Agent,
    owner: Agent,
    _source: Region,
}

fn pair(backend: &str) -> Pair {
    let (writer, owner) = (Agent::new("writer").unwrap(), Agent::new("owner").unwrap());
    let mut memory = Memory::allocate(PAGE * PAGES).unwrap();
    for (page, bytes) in memory.as_mut_slice().chunks_mut(PAGE).enumerate() {
        bytes.fill(page as u8 + 1);
    }
    let source = writer.register(memory, &RegionOptions::with_access(Access::ALL)).unwrap();
    let target =
        owner.register(Memory::allocate(PAGE * PAGES).unwrap(), &RegionOptions::with_access(Access::ALL)).unwrap();
    let peer = writer.connect(&owner.address().unwrap(), SOON).unwrap();
    let pages = |address| [Blocks::at(address, PAGE as u64).repeat(PAGES as u64, PAGE as u64)];
    let mine = writer.block_list(&pages(source.address())).unwrap();
    let theirs = peer.block_list(&pages(target.address())).unwrap();
    let options = PlanOptions { backend: backend.into(), ..Default::default() };
    let plan = writer.plan(&mine, &theirs, &options).unwrap();
    Pair { target, plan, writer, owner, _source: source }
}

fn page(region: &Region, number: usize) -> u8 {
    let mut bytes = vec![0; PAGE];
    region.read_at(number * PAGE, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
    bytes[0]
}

#[test]
fn each_post_brings_its_own_picks_and_notice() {
    for backend in ["", "tcp"] {
        let pair = pair(backend);
        let posts: Vec<_> = (0..8u32)
            .map(|i| {
                let (from, to, notice) = ([i], [63 - i], [i as u8]);
                let options = PostOptions {
                    from: (&from).into(),
                    to: (&to).into(),
                    notice: &notice,
                    priority: Priority::LATENCY,
                    ..Default::default()
                };
                pair.plan.post(&options).unwrap()
            })
            .collect();
        let mut told: Vec<u8> = posts
            .iter()
            .map(|post| {
                post.wait(SOON).unwrap();
                assert_eq!(post.outcome().unwrap().bytes, PAGE as u64);
                pair.owner.receive(SOON).unwrap().bytes()[0]
            })
            .collect();
        told.sort();
        assert_eq!(told, (0..8).collect::<Vec<u8>>());
        for i in 0..8 {
            assert_eq!(page(&pair.target, 63 - i), i as u8 + 1);
        }
    }
}

#[test]
fn a_group_has_one_outcome_and_one_notice() {
    let pair = pair("tcp");
    let options = GroupOptions { notice: b"all layers", ..Default::default() };
    let group = pair.writer.group(&options).unwrap();
    for layer in 0..16u64 {
        let pages = layer * 4..(layer + 1) * 4;
        let options =
            PostOptions { from: pages.clone().into(), to: pages.into(), group: Some(&group), ..Default::default() };
        pair.plan.post(&options).unwrap();
    }
    assert!(pair.owner.receive(Timeout::NOW).is_err(), "a group that is open has told nobody");
    group.close().unwrap();
    let (done, notice) = block_on(zip(group.done(), pair.owner.receive_async()));
    done.unwrap();
    assert_eq!(notice.unwrap().bytes(), b"all layers");
    assert!((0..PAGES).all(|number| page(&pair.target, number) == number as u8 + 1));
    assert_eq!(group.close().unwrap_err().status(), Status::INVALID_ARGUMENT);
    assert!(pair.owner.receive(Timeout::NOW).is_err());
}

#[test]
fn posts_are_futures() {
    let pair = pair("");
    block_on(async {
        for i in 0..50u32 {
            let pick = [i];
            let options = PostOptions { from: (&pick).into(), to: (&pick).into(), ..Default::default() };
            pair.plan.run(&options).await.unwrap();
        }
    });
    assert_eq!(page(&pair.target, 49), 50);
}

#[test]
fn what_is_wrong_with_a_post_is_said() {
    let pair = pair("");
    let post = |from: &[u32], to: &[u32]| {
        let options = PostOptions { from: from.into(), to: to.into(), ..Default::default() };
        pair.plan.post(&options).map(drop).unwrap_err()
    };
    let error = post(&[64], &[0]);
    assert_eq!(error.status(), Status::OUT_OF_RANGE);
    assert!(error.message().contains("64"), "{error}");
    assert_eq!(post(&[1, 2], &[0]).status(), Status::MISMATCH);
    let late = PostOptions { timeout: Some(Timeout::NOW), ..Default::default() };
    let outcome = pair.plan.post(&late).and_then(|post| post.wait(SOON));
    assert_eq!(outcome.unwrap_err().status(), Status::TIMED_OUT);
    let other = Agent::new("other").unwrap();
    let mine = other.block_list(&[]);
    if let Ok(list) = mine {
        assert!(pair.writer.plan(&list, &list, &PlanOptions::default()).is_err());
    }
}

#[test]
fn a_post_for_which_there_is_no_room_says_so_and_nothing_of_an_earlier_failure() {
    let pair = pair("");
    let (pick, wrong) = ([1], [64]);
    let options = PostOptions { from: (&pick).into(), to: (&pick).into(), ..Default::default() };
    let mut held: Vec<_> = (0..4096).map(|_| pair.plan.post(&options).unwrap()).collect();
    let earlier = PostOptions { from: (&wrong).into(), ..options };
    assert_eq!(pair.plan.post(&earlier).unwrap_err().status(), Status::AGAIN, "no room comes first");
    held.pop();
    assert_eq!(pair.plan.post(&earlier).unwrap_err().status(), Status::OUT_OF_RANGE);
    held.push(pair.plan.post(&options).unwrap());
    let error = pair.plan.post(&options).unwrap_err();
    assert!(error.is_retryable());
    assert_eq!(error.message(), format!("post: {}", Status::AGAIN.text()));
}

#[test]
fn the_post_of_a_copy_is_cancelled_when_it_is_dropped_and_its_memory_comes_back() {
    let (writer, owner) = (Agent::new("writer").unwrap(), Agent::new("owner").unwrap());
    let bytes = 64 << 20;
    let own = || Memory::allocate(bytes).unwrap();
    let source = writer.register(own(), &RegionOptions::with_access(Access::ALL)).unwrap();
    let target = owner.register(own(), &RegionOptions::with_access(Access::ALL)).unwrap();
    let peer = writer.connect(&owner.address().unwrap(), SOON).unwrap();
    let blocks = |address| [Blocks::at(address, bytes as u64)];
    let mine = writer.block_list(&blocks(source.address())).unwrap();
    let theirs = peer.block_list(&blocks(target.address())).unwrap();
    drop(writer.copy(&mine, &theirs, &PostOptions::default()).unwrap());
    source.deregister(SOON).map_err(|(_, error)| error).unwrap();
}

#[test]
fn a_group_that_is_dropped_open_tells_nobody() {
    let pair = pair("tcp");
    let group = pair.writer.group(&GroupOptions { notice: b"never", ..Default::default() }).unwrap();
    let post = pair.plan.post(&PostOptions { group: Some(&group), ..Default::default() }).unwrap();
    drop(group);
    let _ = post.wait(SOON);
    post.wait_fenced(towline::Fence::Both, SOON).unwrap();
    assert_eq!(pair.owner.receive(Duration::from_millis(50)).unwrap_err().status(), Status::NOT_YET);
}

#[test]
fn scoped_posts_are_posts_that_borrow_their_plan() {
    for backend in ["", "tcp"] {
        let pair = pair(backend);
        let picks: Vec<[u32; 1]> = (0..8).map(|i| [i]).collect();
        let posts: Vec<_> = picks
            .iter()
            .map(|pick| {
                let options = PostOptions { from: pick.into(), to: pick.into(), ..Default::default() };
                pair.plan.post_scoped(&options).unwrap()
            })
            .collect();
        for (i, post) in posts.iter().enumerate() {
            post.wait(SOON).unwrap();
            assert_eq!(post.poll(), Status::OK);
            assert_eq!(post.outcome().unwrap().bytes, PAGE as u64);
            assert_eq!(page(&pair.target, i), i as u8 + 1);
        }
        let wrong = [PAGES as u32];
        let refused = PostOptions { from: (&wrong).into(), to: (&wrong).into(), ..Default::default() };
        assert_eq!(pair.plan.post_scoped(&refused).unwrap_err().status(), Status::OUT_OF_RANGE);
        drop(posts);
        // A post that is forgotten and never released does not hold up the ends of plan and agents.
        std::mem::forget(pair.plan.post_scoped(&PostOptions::default()).unwrap());
    }
}
