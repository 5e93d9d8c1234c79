#include "product.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>

#include "gpu.h"

namespace bench::gpu {

namespace {

constexpr int kInFlight = 3;

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void check(int code, const char* what) {
  if (code != 0) throw std::runtime_error(std::string(what) + ": error " + std::to_string(code));
}

void* open_library(const std::vector<std::string>& names) {
  for (const std::string& name : names)
    if (void* const library = name.empty() ? nullptr : dlopen(name.c_str(), RTLD_NOW)) return library;
  throw std::runtime_error("no " + names.back() + " can be loaded: name it with --cublas");
}

template <class Function>
Function find(void* library, const char* name) {
  void* const found = dlsym(library, name);
  if (found == nullptr) throw std::runtime_error(std::string("there is no ") + name);
  return reinterpret_cast<Function>(found);
}

// As cuda.h has it.
struct Resource {
  int type;
  unsigned char unused[92];
  unsigned sms;
  unsigned char more[44];
};

void* driver() {
  static void* const library = open_library({"libcuda.so.1"});
  return library;
}

template <class... Arguments>
void call(const char* name, Arguments... arguments) {
  check(find<int (*)(Arguments...)>(driver(), name)(arguments...), name);
}

}  // namespace

Product::Product(const std::string& cublas, int size, Share share) : size_(size) {
  use(0);
  synchronize();  // the primary context is there
  call("cuCtxGetCurrent", &context_);
  if (share.sms != 0) {
    Resource all{};
    Resource part{};
    Resource rest{};
    unsigned parts = 1;
    void* description = nullptr;
    void* green = nullptr;
    call("cuDeviceGetDevResource", 0, &all, 1);
    call("cuDevSmResourceSplitByCount", &part, &parts, &all, &rest, 0u, unsigned{share.sms});
    Resource& mine = share.rest ? rest : part;
    call("cuDevResourceGenerateDesc", &description, &mine, 1u);
    call("cuGreenCtxCreate", &green, description, 0, 1u);
    call("cuCtxFromGreenCtx", &context_, green);
    sms_ = mine.sms;
  }
  thread_ = std::thread([this, cublas] {
    try {
      work(cublas);
    } catch (const std::exception& error) {
      error_ = error.what();
      ready_ = true;
    }
  });
  while (!ready_) std::this_thread::yield();
  if (!error_.empty()) {
    thread_.join();
    throw std::runtime_error(error_);
  }
}

Product::~Product() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

void Product::run(bool on) {
  on_ = on;
  const double begun = now_s();  // it takes a while to come to speed, and to stop
  while (now_s() < begun + (on ? 0.2 : 0.05)) std::this_thread::yield();
}

double Product::speed(double begin_s, double end_s) {
  const std::lock_guard lock(mutex_);
  const auto first = std::lower_bound(ends_s_.begin(), ends_s_.end(), begin_s);
  const auto last = std::lower_bound(first, ends_s_.end(), end_s);
  if (last - first < 2) return 0;
  const double products = static_cast<double>(last - first - 1);
  const double size = size_;
  return products * 2 * size * size * size / (*(last - 1) - *first) / 1e12;
}

void Product::work(const std::string& cublas) {
  call("cuCtxSetCurrent", context_);
  void* const library = open_library({cublas, "libcublas.so.13", "libcublas.so.12", "libcublas.so"});
  const auto multiply =
      find<int (*)(void*, int, int, int, int, int, const void*, const void*, int, int, const void*, int, int,
                   const void*, void*, int, int, int, int)>(library, "cublasGemmEx");
  void* handle = nullptr;
  void* stream = nullptr;
  void* ended[kInFlight] = {};
  check(find<int (*)(void**)>(library, "cublasCreate_v2")(&handle), "cublasCreate");
  call("cuStreamCreate", &stream, 1u);
  for (void*& event : ended) call("cuEventCreate", &event, 2u);
  check(find<int (*)(void*, void*)>(library, "cublasSetStream_v2")(handle, stream), "cublasSetStream");
  const uint64_t elements = uint64_t(size_) * uint64_t(size_);
  uint64_t matrices[3];
  for (uint64_t& matrix : matrices) matrix = allocate(elements * 2);
  for (int i = 0; i < 2; ++i) randomize_bf16(matrices[i], elements);
  const float one = 1;
  const float zero = 0;
  const auto at = [&](int i) { return reinterpret_cast<void*>(matrices[i]); };
  uint64_t begun = 0;
  ready_ = true;
  while (!stop_) {
    if (!on_) {
      begun = 0;
      std::this_thread::yield();
      continue;
    }
    void* const event = ended[begun % kInFlight];
    if (begun >= kInFlight) {
      call("cuEventSynchronize", event);
      const std::lock_guard lock(mutex_);
      ends_s_.push_back(now_s());
    }
    constexpr int kBf16 = 14;
    check(multiply(handle, 0, 0, size_, size_, size_, &one, at(0), kBf16, size_, at(1), kBf16, size_, &zero,
                   at(2), kBf16, size_, 68 /* sums in float32 */, -1),
          "cublasGemmEx");
    call("cuEventRecord", event, stream);
    ++begun;
  }
  call("cuStreamSynchronize", stream);
}

}  // namespace bench::gpu
