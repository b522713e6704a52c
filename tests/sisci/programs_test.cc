// Programs that know nothing of the software libsisci but its headers: each process is a host.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "transport/window/sisci/testing/fabric.h"

namespace {

using ropewalk::transport::SoftwareFabric;

// On host `host`, whose node id is 4 * (host + 1).
pid_t start(const char* program, const char* role, unsigned host, unsigned last) {
  const pid_t pid = fork();
  if (pid == 0) {
    setenv("SOFTWARE_SISCI_HOST", std::to_string(host).c_str(), 1);
    const std::string path = std::string(RW_SISCI_PROGRAMS) + "/" + program;
    execl(path.c_str(), program, role, std::to_string(4 * (host + 1)).c_str(),
          std::to_string(last).c_str(), nullptr);
    _exit(127);
  }
  return pid;
}

void expect_success(const std::vector<pid_t>& processes) {
  for (std::size_t i = 0; i < processes.size(); ++i) {
    int status = 0;
    waitpid(processes[i], &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
        << "process " << i << " ended with " << status;
  }
}

class Programs : public ::testing::TestWithParam<const char*> {};

TEST_P(Programs, Run) {
  for (const char* settings : {"", "megabytes_per_second 500\nlatency_us 20\n"}) {
    const SoftwareFabric fabric(settings);
    expect_success({start(GetParam(), "client", 0, 8), start(GetParam(), "server", 1, 4)});
  }
}

INSTANTIATE_TEST_SUITE_P(SoftwareSisci, Programs,
                         ::testing::Values("pio_ping_pong", "dma_ping_pong", "interrupt_ping_pong",
                                           "segment_events", "order_of_closing", "dma_vectors"),
                         [](const auto& instance) { return std::string(instance.param); });

// The client and three servers share a segment that each can write for all.
TEST(Programs, ShareReflectiveMemory) {
  const SoftwareFabric fabric;
  std::vector<pid_t> processes;
  for (unsigned host = 0; host < 4; ++host) {
    processes.push_back(start("reflective_memory", host == 0 ? "client" : "server", host, 4));
  }
  expect_success(processes);
}

}  // namespace
