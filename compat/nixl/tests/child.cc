// Another process of a test: started from this very program, told what to do in lines.
//
//   metadata            answers this agent's metadata in hexadecimal
//   address             where its memory is
//   load <hex>          loads another agent's metadata
//   byte <offset>       the value of a byte of its memory, without calling into NIXL
//   write <agent> <address> <bytes> <notification>   a WRITE from its memory's begin; answers the status
//   await <agent>       waits for a notification of the agent and answers it
//   quit                ends in good order
//
// Between lines it sleeps in read(): it does not call in, so that what happens then happens without it.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <sstream>

#include "support.h"

extern char** environ;  // NOLINT: POSIX's

namespace compat {

std::string to_hex(std::string_view bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    text.push_back(kDigits[static_cast<uint8_t>(c) >> 4]);
    text.push_back(kDigits[static_cast<uint8_t>(c) & 15]);
  }
  return text;
}

std::string from_hex(std::string_view text) {
  std::string bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(std::string{text.substr(i, 2)}, nullptr, 16)));
  }
  return bytes;
}

// ---- the child's side

namespace {

// Nothing that ThreadSanitizer sees orders this after the write of a thread that serves a peer: the peer tells of its end elsewhere.
[[gnu::no_sanitize("thread")]] int byte_at(const char* memory) {
  return *static_cast<const volatile char*>(memory);
}

std::string write_to(Side& side, std::istringstream& words) {
  std::string agent;
  uintptr_t address = 0;
  size_t bytes = 0;
  std::string notification;
  words >> agent >> address >> bytes >> notification;
  nixl_xfer_dlist_t there(DRAM_SEG);
  there.emplace(address, bytes, uint64_t{0});
  const nixl_opt_args_t args = with_notif(notification);
  nixlXferReqH* made = nullptr;
  nixl_status_t status =
      side.agent->createXferReq(NIXL_WRITE, side.blocks(1, bytes), there, agent, made, &args);
  if (status == NIXL_SUCCESS) {
    status = run(*side.agent, made);
    (void)side.agent->releaseXferReq(made);
  }
  return nixlEnumStrings::statusStr(status);
}

std::string obey(Side& side, const std::string& line) {
  std::istringstream words(line);
  std::string verb;
  words >> verb;
  if (verb == "metadata") return to_hex(side.metadata());
  if (verb == "address") return std::to_string(side.address());
  if (verb == "write") return write_to(side, words);
  if (verb == "await") {
    std::string sender;
    std::vector<std::string> texts;
    words >> sender;
    return receives(*side.agent, sender, 1, texts) ? texts[0] : "nothing came";
  }
  if (verb == "byte") {
    size_t offset = 0;
    words >> offset;
    return std::to_string(byte_at(&side.memory.at(offset)));
  }
  if (verb == "load") {
    std::string hex;
    std::string loaded;
    words >> hex;
    return nixlEnumStrings::statusStr(side.agent->loadRemoteMD(from_hex(hex), loaded));
  }
  if (verb == "plugins") {
    std::vector<nixl_backend_t> names;
    std::string all;
    if (side.agent->getAvailPlugins(names) != NIXL_SUCCESS) return "not told";
    for (const nixl_backend_t& name : names) all += name + " ";
    return to_hex(all);
  }
  if (verb == "create") {
    std::string name;
    nixlBackendH* made = nullptr;
    words >> name;
    const nixl_status_t status = side.agent->createBackend(name, {}, made);
    return to_hex(nixlEnumStrings::statusStr(status) + " " + towline::nixl::last_error());
  }
  return "what is '" + verb + "'?";
}

}  // namespace

int child_main(const std::string& name) {
  const char* backend = std::getenv("COMPAT_BACKEND");  // else UCX
  Side side(name, 1 << 20, nixlAgentConfig{}, backend == nullptr);
  if (backend != nullptr) {
    EXPECT_EQ(side.agent->createBackend(backend, {}, side.backend), NIXL_SUCCESS);
    EXPECT_EQ(side.agent->registerMem(side.registered()), NIXL_SUCCESS);
  }
  side.fill('a');
  std::string line;
  while (std::getline(std::cin, line)) {
    if (line == "quit") {
      std::cout << "bye" << std::endl;
      return 0;
    }
    std::cout << obey(side, line) << std::endl;
  }
  return 3;
}

// ---- the test's side

Child::Child(const std::string& name, const std::vector<std::string>& environment) {
  int in[2] = {};
  int out[2] = {};
  EXPECT_EQ(pipe2(in, O_CLOEXEC), 0);
  EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  std::string program = "/proc/self/exe";
  std::string flag = "--child";
  std::string agent = name;
  char* const arguments[] = {program.data(), flag.data(), agent.data(), nullptr};
  std::vector<std::string> added = environment;
  std::vector<char*> variables;
  for (std::string& variable : added) variables.push_back(variable.data());
  for (char** variable = environ; *variable != nullptr; ++variable) variables.push_back(*variable);
  variables.push_back(nullptr);
  EXPECT_EQ(posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments, variables.data()), 0);
  posix_spawn_file_actions_destroy(&actions);
  close(in[0]);
  close(out[1]);
  to_ = in[1];
  from_ = out[0];
}

Child::~Child() {
  close(to_);
  close(from_);
  if (pid_ > 0) {
    signal(SIGKILL);
    (void)wait();
  }
}

std::string Child::read_line() {
  for (;;) {
    if (const size_t end = buffer_.find('\n'); end != std::string::npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return line;
    }
    char piece[4096];
    const ssize_t got = read(from_, piece, sizeof piece);
    if (got <= 0) return "the child is gone";
    buffer_.append(piece, static_cast<size_t>(got));
  }
}

std::string Child::ask(const std::string& command) {
  const std::string line = command + "\n";
  size_t done = 0;
  while (done < line.size()) {
    const ssize_t put = write(to_, line.data() + done, line.size() - done);
    if (put <= 0) return "the child is gone";
    done += static_cast<size_t>(put);
  }
  return read_line();
}

// A stop is waited for.
void Child::signal(int number) const {
  kill(pid_, number);
  int status = 0;
  if (number == SIGSTOP) {
    EXPECT_EQ(waitpid(pid_, &status, WUNTRACED), pid_);
  }
}

int Child::wait() {
  if (pid_ <= 0) return -1;
  int status = 0;
  EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace compat
