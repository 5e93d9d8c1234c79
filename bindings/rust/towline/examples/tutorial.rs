//! The Rust of docs/tutorial.md: scripts/tutorial copies the parts between "[name]" and "[end]" to the page.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use futures_lite::future::block_on;
use towline::collectives::{Communicator, CommunicatorOptions};
use towline::{
    Access, Agent, Blocks, Memory, PlanOptions, PostOptions, QueueOptions, Reduction, RegionOptions, Result,
    StorageOptions,
};

const PAGE: u64 = 4096;
const PAGES: u64 = 64;
const SOON: Duration = Duration::from_secs(30);

fn owner() -> Result<()> {
    // [own]
    let mut cache = Memory::allocate((PAGES * PAGE) as usize)?; // memory that peers can map
    cache.as_mut_slice().fill(7);
    let agent = Agent::new("owner")?;
    let _region = agent.register(cache, &RegionOptions::with_access(Access::READ))?; // it owns the memory now
    println!("{}", agent.address()?); // "127.0.0.1:43121": send it to the peer by any means
                                      // [end]
    let _ = std::io::stdout().flush();
    // [notice]
    let notice = agent.receive(SOON)?;
    assert_eq!(notice.bytes(), b"thanks"); // every byte was read, so the pages may be reused
                                           // [end]
    Ok(())
}

fn reader(address: &str) -> Result<()> {
    // [move]
    let agent = Agent::new("reader")?;
    let mine = agent.register(Memory::allocate((PAGES * PAGE) as usize)?, &RegionOptions::default())?;
    let peer = agent.connect(address, SOON)?;
    let here = agent.block_list(&[Blocks::at(mine.address(), PAGE).repeat(PAGES, PAGE)])?;
    let there = peer.block_list(&[Blocks::at(peer.regions()?[0].address, PAGE).repeat(PAGES, PAGE)])?;
    // [end]
    // [plan]
    let plan = agent.plan(&there, &here, &PlanOptions::default())?; // once for each peer and pair of lists
    let pages = PostOptions { from: (&[40, 7]).into(), to: (&[0, 1]).into(), ..Default::default() };
    plan.post(&pages)?.wait(SOON)?; // for each request; or: plan.run(&pages).await?
                                    // [end]
    let mut page = vec![0; PAGE as usize];
    mine.read_at(PAGE as usize, &mut page)?;
    assert!(page.iter().all(|byte| *byte == 7));
    // [wait]
    let queue = agent.queue(&QueueOptions::default())?;
    for request in 0..3 {
        plan.post(&PostOptions { queue: Some((&queue, request)), ..Default::default() })?;
    }
    let mut done = 0;
    while done < 3 {
        for event in queue.wait(SOON)? {
            event.result()?; // or, in async code: for event in queue.wait_async().await? {
            done += 1;
        }
    }
    // [end]
    peer.send(b"thanks")?;
    let path = std::env::temp_dir().join(format!("towline-tutorial-rust-{}", std::process::id()));
    let uri = format!("file:{}", path.display());
    // [store]
    let options = StorageOptions { create: true, bytes: PAGES * PAGE, ..Default::default() };
    let file = agent.register_storage(&uri, &options)?;
    let stored = agent.block_list(&[file.blocks(0, PAGE)?.repeat(PAGES, PAGE)])?;
    agent.plan(&here, &stored, &PlanOptions::default())?.post(&PostOptions::default())?.wait(SOON)?;
    file.commit(SOON)?; // durable
                        // [end]
    assert_eq!(std::fs::metadata(&path).map(|found| found.len()).unwrap_or(0), PAGES * PAGE);
    let _ = std::fs::remove_file(&path);
    Ok(())
}

fn rank_of(rank: i32, folder: &str) -> Result<()> {
    // [collect]
    // With the defaults: rank, size and meeting point from torchrun, MPI or Slurm.
    let options =
        CommunicatorOptions { rank: Some((rank, 2)), bootstrap: format!("file:{folder}"), ..Default::default() };
    let world = Communicator::new(&options)?;
    let mut values = [rank as f32 + 1.0; 4];
    world.all_reduce(&mut values, Reduction::SUM)?; // [3.0; 4] on both ranks
    let sums = block_on(world.start_all_reduce(vec![1.0f32; 1024], Reduction::SUM)?.done())?; // beside the application
                                                                                              // [end]
    assert_eq!((values, sums[0]), ([3.0; 4], 2.0));
    Ok(())
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    if std::env::args().nth(1).as_deref() == Some("owner") {
        return Ok(owner()?);
    }
    let mut child =
        Command::new(std::env::current_exe()?).arg("owner").stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut address = String::new();
    BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut address)?;
    reader(address.trim())?;
    if !child.wait()?.success() {
        return Err("the owner failed".into());
    }
    let folder = std::env::temp_dir().join(format!("towline-tutorial-ranks-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let meeting = folder.display().to_string();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| rank_of(1, &meeting));
        let mine = rank_of(0, &meeting);
        other.join().map_err(|_| "the other rank failed")??;
        mine.map_err(Box::<dyn std::error::Error>::from)
    })?;
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
