// For tests: who asks this process's status sockets (core/status_socket.h).
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <string>
#include <vector>

#include "core/file_descriptor.h"
#include "core/unix_socket.h"

namespace ropewalk::testing {

/// Names of this process's sockets, as the system lists them.
inline std::vector<std::string> status_names() {
  const std::string prefix =
      "@ropewalk-status-" + std::to_string(geteuid()) + "-" + std::to_string(getpid()) + "-";
  std::vector<std::string> names;
  std::ifstream list("/proc/net/unix");
  for (std::string line; std::getline(list, line);) {
    const std::size_t at = line.find(prefix);
    if (at == std::string::npos) continue;
    const std::string name = line.substr(at + 1);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

inline FileDescriptor connect_to_status(const std::string& name) {
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const UnixAddress address = abstract_address(name);
  EXPECT_EQ(connect(socket.get(), address.get(), address.bytes), 0);
  return socket;
}

/// The whole answer.
inline std::string ask_status(const std::string& name, const std::string& question) {
  const FileDescriptor socket = connect_to_status(name);
  EXPECT_EQ(send(socket.get(), question.data(), question.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(question.size()));
  std::string answer;
  std::array<char, 4096> bytes{};
  for (ssize_t got = 0; (got = recv(socket.get(), bytes.data(), bytes.size(), 0)) > 0;) {
    answer.append(bytes.data(), static_cast<std::size_t>(got));
  }
  return answer;
}

}  // namespace ropewalk::testing
