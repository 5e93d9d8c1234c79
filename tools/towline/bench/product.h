// A matrix product that runs again and again on a GPU beside what is measured, as a model would. Driver and
// cuBLAS are loaded when it starts: the tool needs neither.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace tool::bench {

class Product {
 public:
  // Which multiprocessors it runs on: all, a green context of so many, or one of those that so many leave over; or
  // so many that cuBLAS is asked to keep to (cublasSetSmCountTarget).
  enum class How { kPart, kRest, kAsked };
  struct Share {
    uint32_t sms = 0;  // 0: all
    How how = How::kPart;
  };
  // For square matrices of `size` x `size` in bf16. `cublas`: its file; empty: as the loader finds it. Throws Failure
  // that says what is missing.
  Product(int gpu, const std::string& cublas, int size, Share share);
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;
  ~Product();

  // Starts it and waits until it has come to speed, or stops it. Throws Failure: it has ended with an error.
  void run(bool on);
  // TFLOP/s between two times of steady_clock, of whole products; 0: none ended.
  [[nodiscard]] double speed(double begin_s, double end_s);
  // Processor time that it has used, of its thread.
  [[nodiscard]] double cpu_s();

 private:
  void multiply_until_stopped(const std::string& cublas);

  const int gpu_;
  const int size_;
  const Share share_;
  void* context_ = nullptr;
  std::atomic<bool> on_{false};
  std::atomic<bool> stop_{false};
  std::atomic<bool> ready_{false};
  std::mutex mutex_;
  std::string error_;
  std::vector<double> ends_s_;
  std::thread thread_;
};

}  // namespace tool::bench
