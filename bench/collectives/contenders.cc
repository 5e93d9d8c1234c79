#include <stdexcept>

#include "bare.h"
#include "contender.h"
#include "team.h"
#include "towline/collectives.h"

namespace bench {
namespace {

class BareContender final : public Contender {
 public:
  explicit BareContender(Team& team) : bare_(team.bare_memory(), team.rank(), team.ranks()) {}
  const char* name() const override { return "bare"; }
  bool run(const std::string& operation, const float* in, float* out, size_t count) override {
    if (operation == "all_reduce")
      bare_.all_reduce(in, out, count);
    else if (operation == "broadcast")
      bare_.broadcast(out, count, 0);
    else if (operation == "all_gather")
      bare_.all_gather(in, out, count);
    else if (operation == "reduce_scatter")
      bare_.reduce_scatter(in, out, count);
    else if (operation == "all_to_all")
      bare_.all_to_all(in, out, count);
    else if (operation == "barrier")
      bare_.barrier();
    else
      return false;
    return true;
  }

 private:
  Bare bare_;
};

class TowlineContender final : public Contender {
 public:
  TowlineContender(Team& team, const std::string& folder, bool shared_memory) : shared_(shared_memory) {
    const std::string bootstrap = "file:" + folder;
    towline_communicator_options_t options = {};
    options.struct_size = sizeof options;
    options.name = shared_memory ? "shm" : "tcp";
    options.rank = team.rank();
    options.size = team.ranks();
    options.bootstrap = bootstrap.c_str();
    options.flags = shared_memory ? 0 : TOWLINE_COMMUNICATOR_NO_SHARED_MEMORY;
    need(towline_communicator_create(&options, &world_));
  }
  ~TowlineContender() override { towline_communicator_destroy(world_); }
  const char* name() const override { return shared_ ? "towline" : "towline_tcp"; }
  bool run(const std::string& operation, const float* in, float* out, size_t count) override {
    if (operation != last_) {
      for (uint32_t op = TOWLINE_COLLECTIVE_BARRIER; op <= TOWLINE_COLLECTIVE_ALL_TO_ALL; ++op)
        if (operation == towline_collective_op_name(op)) op_ = op;
      last_ = operation;
    }
    towline_collective_t call = {};
    call.struct_size = sizeof call;
    call.op = op_;
    call.datatype = TOWLINE_FLOAT32;
    call.count = count;
    call.input = op_ == TOWLINE_COLLECTIVE_BROADCAST ? out : in;
    call.output = out;
    need(towline_collective(world_, &call, nullptr, nullptr));
    return true;
  }

 private:
  static void need(int32_t status) {
    if (status < 0) throw std::runtime_error(towline_last_error());
  }
  const bool shared_;
  std::string last_;
  uint32_t op_ = 0;
  towline_communicator_t* world_ = nullptr;
};

}  // namespace

std::unique_ptr<Contender> make_bare(Team& team) { return std::make_unique<BareContender>(team); }

std::unique_ptr<Contender> make_towline(Team& team, const std::string& folder, bool shared_memory) {
  return std::make_unique<TowlineContender>(team, folder, shared_memory);
}

}  // namespace bench
