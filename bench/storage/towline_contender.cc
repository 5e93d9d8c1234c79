// Towline's contenders, through the public headers alone. The application drives its own progress.
#include <optional>
#include <stdexcept>
#include <towline/storage.hpp>
#include <towline/towline.hpp>

#include "store.h"

namespace bench {
namespace {

class TowlineStore final : public StoreContender {
 public:
  TowlineStore(const std::string& engine, Store& store)
      : StoreContender(engine == "auto" ? "towline" : "towline_" + engine, store), engine_(engine) {}

  std::vector<std::string> limits() const override {
    return {"pread", "pread4", "uring", "fio_io_uring", "fio_libaio", "fio_psync"};
  }
  std::vector<std::string> peers() const override { return {"nixl_aio", "nixl_uring"}; }
  void release() override { transfer_.reset(); }

  void setup() override {
    towline::Agent agent("bench", {.progress = towline::Progress::kCaller,
                                   .listen = "none",
                                   .config = "[tuning.posix]\nengine = \"" + engine_ + "\"\n"});
    auto memory = agent.register_memory(towline::dram(store().memory(), store().span()),
                                        {.access = towline::Access::kAll});
    auto file = agent.register_storage("file:" + store().path(),
                                       {.access = towline::Access::kAll, .direct = store().direct()});
    ends_.emplace(Ends{std::move(agent), std::move(memory), std::move(file)});
  }

 private:
  struct Ends {
    towline::Agent agent;
    towline::Region memory;
    towline::Region file;
  };

  void prepare_cell() override {
    const std::size_t block = cell().block;
    const std::uint64_t blocks = store().span() / block;
    const auto here =
        ends_->agent.block_list(towline::Blocks::at(store().memory(), block).repeat(blocks, block));
    const auto there = ends_->agent.block_list(ends_->file.blocks(0, block).repeat(blocks, block));
    const towline::PickedBlocks memory = here[lists().local];
    const towline::PickedBlocks stored = there[lists().remote];
    const bool write = cell().op == Op::kWrite;
    transfer_.emplace(ends_->agent.transfer(write ? memory : stored, write ? stored : memory));
  }

  void run_once() override {
    towline::Status status = transfer_->post();
    while (status == towline::Status::kAgain) {
      ends_->agent.progress();
      status = transfer_->post();
    }
    while (status == towline::Status::kInProgress) status = transfer_->poll();
    if (status != towline::Status::kOk)
      throw std::runtime_error("transfer: " + std::string(towline::status_text(status)));
  }

  std::string engine_;
  std::optional<Ends> ends_;
  std::optional<towline::Transfer> transfer_;  // last, so that it ends first
};

}  // namespace

void add_towline(Store& store, const std::vector<std::string>& engines, Contenders& out) {
  for (const std::string& engine : engines) out.push_back(std::make_unique<TowlineStore>(engine, store));
}

}  // namespace bench
