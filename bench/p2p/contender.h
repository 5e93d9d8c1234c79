// A contender is one way to move the blocks of a cell: a bare limit, the peer, or Towline. It lives in this
// process (the initiator) and, where the other side has work or memory, has a Responder in the target
// process.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cell.h"
#include "support/process.h"

namespace bench {

// Target side. One object per contender; every call comes from the target's only thread, one contender at a
// time.
class Responder {
 public:
  virtual ~Responder() = default;
  virtual Json setup(
      const Json& request) = 0;  // makes memory and endpoints; the answer goes to Contender::setup
  virtual Json connect(const Json& request) { return request; }
  virtual void prepare(const Cell&, const BlockLists&) {}
  virtual void serve(std::uint64_t /*iterations*/) {}  // takes part in that many runs, then returns
  virtual std::byte* memory() = 0;                     // where remote block 0 lies
};

// Initiator side, one thread. `span` bytes of memory on both sides; block indices count from their
// beginnings.
class Contender {
 public:
  explicit Contender(std::string name) : name_(std::move(name)) {}
  virtual ~Contender() = default;
  const std::string& name() const { return name_; }

  virtual bool supports(const Cell&) const { return true; }
  virtual void setup() = 0;                                  // once, before the first cell
  virtual void prepare(const Cell&, const BlockLists&) = 0;  // untimed, before each cell's first run
  virtual void release() {}                                  // after each cell's last run

  // Moves the prepared cell `iterations` times after one or more warm-up runs, and returns the seconds that
  // the iterations took on the wall clock.
  virtual double run(std::uint64_t iterations) = 0;

  // Measures for a time of its own, whatever `iterations` is, and moves bytes of its own: nothing is checked.
  virtual bool by_time() const { return false; }

  // Stamps the source and, after a run, returns the number of wrong blocks at the destination.
  virtual void stamp_source(std::uint64_t epoch) = 0;
  virtual std::size_t verify(std::uint64_t epoch) = 0;

  // For Towline's contenders: the bare limits this one is measured against (the best of them counts), and the
  // peers.
  virtual std::vector<std::string> limits() const { return {}; }
  virtual std::vector<std::string> peers() const { return {}; }

 private:
  std::string name_;
};

// Shared by the contenders of this process: the initiator's memory and the way to the target process.
struct Session {
  std::size_t span;
  Memory local;
  ChildProcess* target;
};

// A contender whose target half is a Responder of ours: does the talking, so that a limit is only its inner
// loop.
class PairedContender : public Contender {
 public:
  PairedContender(std::string name, Session& session) : Contender(std::move(name)), session_(session) {}
  void setup() final;
  void prepare(const Cell& cell, const BlockLists& lists) final;
  double run(std::uint64_t iterations) final;
  void stamp_source(std::uint64_t epoch) final;
  std::size_t verify(std::uint64_t epoch) final;

 protected:
  virtual void connect(const Json& target) = 0;  // the Responder's answer
  virtual void prepare_cell() {}                 // cell() and lists() are set
  virtual void run_once() = 0;
  virtual bool target_serves() const { return false; }  // must the responder's serve() run meanwhile?

  Json ask(Json request);  // of this contender's responder
  const Cell& cell() const { return cell_; }
  const BlockLists& lists() const { return lists_; }
  std::byte* local() const { return session_.local.data(); }
  std::size_t span() const { return session_.span; }

 private:
  Session& session_;
  Cell cell_;
  BlockLists lists_;
};

using Contenders = std::vector<std::unique_ptr<Contender>>;

// Each family adds its contenders here and makes the Responder for their names (null: not mine).
struct TargetMemory;  // target.h
struct Family {
  void (*add)(Session&, Contenders&);
  std::unique_ptr<Responder> (*make_responder)(const std::string& name, TargetMemory&);
};
extern const Family kMappedFamily;
extern const Family kProcessVmFamily;
extern const Family kRingFamily;
extern const Family kTcpFamily;
extern const Family kHeadedFamily;
extern const Family kTowlineFamily;  // where BENCH_HAS_TOWLINE is defined
std::vector<Family> families();      // those that this build has

}  // namespace bench
