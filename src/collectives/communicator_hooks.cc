// Functions of the application that are told of operations.
#include "base/error.h"
#include "collectives/call_out.h"
#include "collectives/communicator.h"

namespace towline::collectives {

std::shared_ptr<Hook> Communicator::add_hook(uint32_t kind, towline_hook_fn function, void* context) {
  if (kind > TOWLINE_HOOK_REPLAY || function == nullptr)
    fail(Status::kInvalidArgument, "no hook of kind {}", kind);
  if (kind == TOWLINE_HOOK_REPLAY && table_->watch_replays == nullptr)
    fail(Status::kUnsupported,
         "communicator {} does not tell of replays: those of the backend gpu on one host do, without NCCL",
         options_.name);
  auto hook = std::make_shared<Hook>();
  hook->kind = kind;
  hook->function = function;
  hook->context = context;
  const std::lock_guard lock(hooks_mutex_);
  auto more = std::make_shared<Hooks>(*hooks_);
  more->push_back(hook);
  hooks_ = std::move(more);
  if (std::atomic<uint32_t>* const count = count_of_hooks(kind)) ++*count;
  return hook;
}

std::atomic<uint32_t>* Communicator::count_of_hooks(uint32_t kind) noexcept {
  if (kind == TOWLINE_HOOK_ABORT) return nullptr;
  return kind == TOWLINE_HOOK_REPLAY ? &replay_hook_count_ : &hook_count_;
}

void Communicator::remove_hook(const std::shared_ptr<Hook>& hook) {
  {
    const std::lock_guard lock(hooks_mutex_);
    if (!std::exchange(hook->listed, false)) return;
    if (std::atomic<uint32_t>* const count = count_of_hooks(hook->kind)) --*count;
    try {
      auto fewer = std::make_shared<Hooks>(*hooks_);
      std::erase(*fewer, hook);
      hooks_ = std::move(fewer);
    } catch (const std::bad_alloc&) {  // it stays, and is not called any more
    }
  }
  const std::lock_guard lock(hook->running);
  hook->removed = true;
}

void Communicator::call_hooks(uint32_t kind, const towline_collective_t* call, uint32_t op,
                              const towline_collective_options_t* options, uint64_t op_id, int32_t status,
                              Work* work, const char* text, bool async) {
  std::shared_ptr<const Hooks> hooks;
  {
    const std::lock_guard lock(hooks_mutex_);
    hooks = hooks_;
  }
  towline_hook_args_t args = {};
  args.struct_size = sizeof args;
  args.op = op;
  args.async = async ? 1 : 0;
  args.op_id = op_id;
  args.call = call;
  args.options = options;
  args.communicator = handle_;
  args.status = status;
  args.work = reinterpret_cast<towline_work_t*>(work);
  args.text = text;
  for (const auto& hook : *hooks) {
    if (hook->kind != kind) continue;
    const std::lock_guard lock(hook->running);
    const CallOut call_out(this);
    if (!hook->removed) hook->function(hook->context, &args);
  }
}

}  // namespace towline::collectives
