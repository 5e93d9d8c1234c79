#include "process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

namespace bench {
namespace {

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

std::byte* map(std::size_t bytes, int flags, int descriptor) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags | MAP_POPULATE, descriptor, 0);
  if (at == MAP_FAILED) fail("mmap");
  return static_cast<std::byte*>(at);
}

struct Spawned {
  pid_t pid;
  int input;
  int output;
};

Spawned spawn(const std::vector<std::string>& arguments,
              const std::map<std::string, std::string>& environment) {
  int to_child[2];
  int from_child[2];
  if (pipe2(to_child, O_CLOEXEC) != 0 || pipe2(from_child, O_CLOEXEC) != 0) fail("pipe2");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, to_child[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, from_child[1], STDOUT_FILENO);

  std::vector<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) variables.emplace_back(*entry);
  for (const auto& [key, value] : environment) variables.push_back(key + "=" + value);
  std::vector<char*> argv, envp;
  for (const auto& text : arguments) argv.push_back(const_cast<char*>(text.c_str()));
  for (const auto& text : variables) envp.push_back(const_cast<char*>(text.c_str()));
  argv.push_back(nullptr);
  envp.push_back(nullptr);

  pid_t pid = -1;
  const int error = posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  close(to_child[0]);
  close(from_child[1]);
  if (error != 0) throw std::system_error(error, std::generic_category(), "cannot start " + arguments[0]);
  return {pid, to_child[1], from_child[0]};
}

}  // namespace

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Channel::send(const Json& message) {
  const std::string line = message.dump() + "\n";
  for (std::size_t done = 0; done < line.size();) {
    const ssize_t n = write(out_, line.data() + done, line.size() - done);
    if (n < 0 && errno != EINTR) fail("write to the other process");
    if (n > 0) done += static_cast<std::size_t>(n);
  }
}

Json Channel::receive() {
  for (;;) {
    const std::size_t end = buffer_.find('\n');
    if (end != std::string::npos) {
      Json message = Json::parse(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(end));
      buffer_.erase(0, end + 1);
      return message;
    }
    char chunk[65536];
    const ssize_t n = read(in_, chunk, sizeof chunk);
    if (n < 0 && errno != EINTR) fail("read from the other process");
    if (n == 0) throw std::runtime_error("the other process ended");
    if (n > 0) buffer_.append(chunk, static_cast<std::size_t>(n));
  }
}

ChildProcess::ChildProcess(const std::vector<std::string>& arguments,
                           const std::map<std::string, std::string>& environment)
    : channel_(-1, -1) {
  const Spawned child = spawn(arguments, environment);
  pid_ = child.pid;
  input_ = child.input;
  output_ = child.output;
  channel_ = Channel(output_, input_);
}

ChildProcess::~ChildProcess() {
  close(input_);
  for (int i = 0; i < 200; ++i) {
    if (waitpid(pid_, nullptr, WNOHANG) == pid_) {
      close(output_);
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  close(output_);
}

Json ChildProcess::ask(const Json& request) {
  channel_.send(request);
  Json answer = channel_.receive();
  if (answer.contains("error")) throw std::runtime_error(answer["error"].get<std::string>());
  return answer;
}

Memory Memory::anonymous(std::size_t bytes) {
  Memory memory(map(bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1), bytes, -1);
  std::memset(memory.data_, 1, bytes);
  return memory;
}

Memory Memory::shared(const char* name, std::size_t bytes) {
  const int descriptor = memfd_create(name, MFD_CLOEXEC);
  if (descriptor < 0 || ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) fail("memfd");
  Memory memory(map(bytes, MAP_SHARED, descriptor), bytes, descriptor);
  std::memset(memory.data_, 0, bytes);
  return memory;
}

Memory Memory::shared_of(pid_t owner, int descriptor, std::size_t bytes) {
  const int ours = open(fmt::format("/proc/{}/fd/{}", owner, descriptor).c_str(), O_RDWR | O_CLOEXEC);
  if (ours < 0) fail("open the shared memory of the other process");
  return {map(bytes, MAP_SHARED, ours), bytes, ours};
}

Memory::~Memory() {
  if (data_ != nullptr) munmap(data_, size_);
  if (descriptor_ >= 0) close(descriptor_);
}

void Memory::swap(Memory& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(descriptor_, other.descriptor_);
}

}  // namespace bench
