// The peer: NIXL's POSIX plugin, driven through its Python package by a child process (peers/nixl/files.py).
#include <map>

#include "store.h"

namespace bench {
namespace {

class NixlFiles final : public StoreContender {
 public:
  NixlFiles(const std::string& engine, const std::string& python, const std::string& script, Store& store)
      : StoreContender("nixl_" + engine, store), engine_("use_" + engine), python_(python), script_(script) {}

  void setup() override {
    const std::map<std::string, std::string> environment = {{"NIXL_LOG_LEVEL", "WARN"}};
    child_ = std::make_unique<ChildProcess>(std::vector<std::string>{python_, script_}, environment);
    child_->ask({{"do", "setup"},
                 {"span", store().span()},
                 {"path", store().path()},
                 {"direct", store().direct()},
                 {"engine", engine_}});
  }
  double run(std::uint64_t iterations) override {
    return child_->ask({{"do", "run"}, {"iterations", iterations}}).at("seconds");
  }
  void release() override { child_->ask({{"do", "release"}}); }
  // Its memory is its own.
  void stamp_source(std::uint64_t epoch) override {
    if (cell().op == Op::kRead)
      StoreContender::stamp_source(epoch);
    else
      child_->ask({{"do", "stamp"}, {"epoch", epoch}, {"count", checked(lists().local).size()}});
  }
  std::size_t verify(std::uint64_t epoch) override {
    if (cell().op == Op::kWrite) return StoreContender::verify(epoch);
    return child_->ask({{"do", "verify"}, {"epoch", epoch}, {"count", checked(lists().local).size()}})
        .at("wrong");
  }

 private:
  void prepare_cell() override {
    child_->ask({{"do", "prepare"},
                 {"op", cell().op_name()},
                 {"block", cell().block},
                 {"local", lists().local},
                 {"remote", lists().remote}});
  }

  std::string engine_;
  std::string python_;
  std::string script_;
  std::unique_ptr<ChildProcess> child_;
};

}  // namespace

void add_nixl_files(const std::string& python, const std::string& script, Store& store, Contenders& out) {
  for (const char* engine : {"aio", "uring"})
    out.push_back(std::make_unique<NixlFiles>(engine, python, script, store));
}

}  // namespace bench
