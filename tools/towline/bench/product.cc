#include "bench/product.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <initializer_list>

#include "failure.h"

namespace tool::bench {

namespace {

constexpr int kInFlight = 3;
constexpr unsigned kNonBlocking = 1;
constexpr unsigned kWithoutTime = 2;
constexpr int kMultiprocessors = 1;
constexpr unsigned kGreenDefaultStream = 1;
constexpr int kBf16 = 14;
constexpr int kSumsInFloat32 = 68;
constexpr int kDefaultAlgorithm = -1;

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void pause(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

void check(int code, const char* what) {
  if (code != 0) throw Failure{fmt::format("the product beside: {}: error {}", what, code)};
}

void* open_library(std::initializer_list<std::string> names, const char* advice) {
  for (const std::string& name : names)
    if (void* const library = name.empty() ? nullptr : dlopen(name.c_str(), RTLD_NOW)) return library;
  throw Failure{fmt::format("the product beside: {} can't be loaded: {}", *(names.end() - 1), advice)};
}

template <class Function>
Function find(void* library, const char* name) {
  void* const found = dlsym(library, name);
  if (found == nullptr) throw Failure{fmt::format("the product beside: there is no {}", name)};
  return reinterpret_cast<Function>(found);
}

// As cuda.h lays it out.
struct Resource {
  int type;
  unsigned char unused[92];
  unsigned sms;
  unsigned char more[44];
};
static_assert(sizeof(Resource) == 144);

template <class... Arguments>
void call(const char* name, Arguments... arguments) {
  static void* const driver = open_library({"libcuda.so.1"}, "no GPU driver is installed");
  check(find<int (*)(Arguments...)>(driver, name)(arguments...), name);
}

// In [-1, 1): products of zeros would use less power than a model's.
std::vector<uint16_t> random_bf16(uint64_t elements) {
  std::vector<uint16_t> values(elements);
  uint64_t state = 88172645463325252;
  for (uint16_t& value : values) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    value = static_cast<uint16_t>(((state >> 20) & 0x807f) | ((119 + (state & 7)) << 7));  // up to 0.996
  }
  return values;
}

// The context of so many multiprocessors, or of those that they leave over.
void* make_share(int gpu, Product::Share share) {
  Resource all{};
  Resource part{};
  Resource rest{};
  unsigned parts = 1;
  void* description = nullptr;
  void* green = nullptr;
  void* context = nullptr;
  call("cuDeviceGetDevResource", gpu, &all, kMultiprocessors);
  call("cuDevSmResourceSplitByCount", &part, &parts, &all, &rest, 0u, unsigned{share.sms});
  call("cuDevResourceGenerateDesc", &description, share.how == Product::How::kRest ? &rest : &part, 1u);
  call("cuGreenCtxCreate", &green, description, gpu, kGreenDefaultStream);
  call("cuCtxFromGreenCtx", &context, green);
  return context;
}

}  // namespace

Product::Product(int gpu, const std::string& cublas, int size, Share share)
    : gpu_(gpu), size_(size), share_(share) {
  call("cuInit", 0u);
  call("cuDevicePrimaryCtxRetain", &context_, gpu_);
  call("cuCtxSetCurrent", context_);
  if (share.sms != 0 && share.how != How::kAsked) context_ = make_share(gpu_, share);
  thread_ = std::thread([this, cublas] {
    try {
      multiply_until_stopped(cublas);
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex_);
      error_ = error.what();
    }
    ready_ = true;
  });
  while (!ready_) pause(0.001);
  const std::lock_guard lock(mutex_);
  if (error_.empty()) return;
  thread_.join();
  throw Failure{error_};
}

Product::~Product() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

void Product::run(bool on) {
  on_ = on;
  pause(on ? 0.2 : 0.05);
  const std::lock_guard lock(mutex_);
  if (!error_.empty()) throw Failure{error_};
}

double Product::speed(double begin_s, double end_s) {
  const std::lock_guard lock(mutex_);
  const auto first = std::lower_bound(ends_s_.begin(), ends_s_.end(), begin_s);
  const auto last = std::lower_bound(first, ends_s_.end(), end_s);
  if (last - first < 2) return 0;
  const auto products = static_cast<double>(last - first - 1);
  const double size = size_;
  return products * 2 * size * size * size / (*(last - 1) - *first) / 1e12;
}

double Product::cpu_s() {
  clockid_t clock = 0;
  timespec used{};
  if (pthread_getcpuclockid(thread_.native_handle(), &clock) != 0 || clock_gettime(clock, &used) != 0)
    return 0;
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

void Product::multiply_until_stopped(const std::string& cublas) {
  call("cuCtxSetCurrent", context_);
  void* const library = open_library({cublas, "libcublas.so.13", "libcublas.so.12", "libcublas.so"},
                                     "name its file with --cublas, or put its folder into LD_LIBRARY_PATH");
  const auto multiply =
      find<int (*)(void*, int, int, int, int, int, const void*, const void*, int, int, const void*, int, int,
                   const void*, void*, int, int, int, int)>(library, "cublasGemmEx");
  void* handle = nullptr;
  void* stream = nullptr;
  std::array<void*, kInFlight> ended = {};
  check(find<int (*)(void**)>(library, "cublasCreate_v2")(&handle), "cublasCreate");
  call("cuStreamCreate", &stream, kNonBlocking);
  for (void*& event : ended) call("cuEventCreate", &event, kWithoutTime);
  check(find<int (*)(void*, void*)>(library, "cublasSetStream_v2")(handle, stream), "cublasSetStream");
  if (share_.how == How::kAsked)
    check(find<int (*)(void*, int)>(library, "cublasSetSmCountTarget")(handle, static_cast<int>(share_.sms)),
          "cublasSetSmCountTarget");
  const std::vector<uint16_t> values = random_bf16(uint64_t(size_) * uint64_t(size_));
  const size_t bytes = values.size() * sizeof(uint16_t);
  std::array<unsigned long long, 3> matrices = {};
  for (unsigned long long& matrix : matrices) call("cuMemAlloc_v2", &matrix, bytes);
  for (int i = 0; i < 2; ++i)
    call("cuMemcpyHtoD_v2", matrices[i], static_cast<const void*>(values.data()), bytes);
  const float one = 1;
  const float zero = 0;
  const auto at = [&](int i) { return reinterpret_cast<void*>(matrices[i]); };
  uint64_t begun = 0;
  ready_ = true;
  while (!stop_) {
    if (!on_) {
      begun = 0;
      pause(0.001);
      continue;
    }
    void* const event = ended[begun % kInFlight];
    if (begun >= kInFlight) {
      call("cuEventSynchronize", event);
      const std::lock_guard lock(mutex_);
      ends_s_.push_back(now_s());
    }
    check(multiply(handle, 0, 0, size_, size_, size_, &one, at(0), kBf16, size_, at(1), kBf16, size_, &zero,
                   at(2), kBf16, size_, kSumsInFloat32, kDefaultAlgorithm),
          "cublasGemmEx");
    call("cuEventRecord", event, stream);
    ++begun;
  }
  call("cuStreamSynchronize", stream);
  for (const unsigned long long matrix : matrices) call("cuMemFree_v2", matrix);
}

}  // namespace tool::bench
