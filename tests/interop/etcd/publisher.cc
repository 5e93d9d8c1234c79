#include "publisher.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <stdexcept>

#include "support.h"

namespace towline::interop {

Publisher::Publisher(const std::string& directory, const std::string& name) {
  int down[2];
  int up[2];
  if (pipe(down) != 0 || pipe(up) != 0) throw std::runtime_error("pipe");
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(down[0], 0);
    dup2(up[1], 1);
    for (int fd = 3; fd < 256; ++fd) close(fd);
    execl("/proc/self/exe", "publisher", "--publisher", directory.c_str(), name.c_str(), nullptr);
    _exit(127);
  }
  close(down[0]);
  close(up[1]);
  to_ = down[1];
  char byte = 0;
  const bool ready = read(up[0], &byte, 1) == 1;
  close(up[0]);
  if (!ready) throw std::runtime_error("the publisher did not publish");
}

Publisher::~Publisher() {
  kill_hard();
  if (to_ >= 0) close(to_);
}

void Publisher::signal(int number) const { kill(pid_, number); }

void Publisher::kill_hard() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

int Publisher::finish() {
  close(to_);
  to_ = -1;
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int run_publisher(int argc, char** argv) {
  if (argc != 4) return 2;
  try {
    const Agent agent = make_agent(argv[3]);
    const Directory directory(agent, argv[2]);
    directory.publish().get();
    if (write(1, "r", 1) != 1) return 3;
    char byte = 0;
    while (read(0, &byte, 1) == 1) {
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "publisher: %s\n", error.what());
    return 1;
  }
}

}  // namespace towline::interop

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "--publisher") return towline::interop::run_publisher(argc, argv);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
