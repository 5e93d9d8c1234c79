// A matrix product that runs again and again beside what is measured. cuBLAS is loaded when it starts.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace bench::gpu {

class Product {
 public:
  // Which multiprocessors it runs on: all, so many, or those that so many leave over.
  struct Share {
    uint32_t sms = 0;
    bool rest = false;
  };
  // On GPU 0, in bf16, of square matrices. Throws std::runtime_error, also where there is no cuBLAS.
  Product(const std::string& cublas, int size, Share share);
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;
  ~Product();

  void run(bool on);
  // TFLOP/s between two times, of whole products.
  [[nodiscard]] double speed(double begin_s, double end_s);
  [[nodiscard]] uint32_t sms() const noexcept { return sms_; }

 private:
  void work(const std::string& cublas);

  const int size_;
  uint32_t sms_ = 0;
  void* context_ = nullptr;
  std::atomic<bool> on_{false};
  std::atomic<bool> stop_{false};
  std::atomic<bool> ready_{false};
  std::string error_;
  std::mutex mutex_;
  std::vector<double> ends_s_;
  std::thread thread_;
};

}  // namespace bench::gpu
