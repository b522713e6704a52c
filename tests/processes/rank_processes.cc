#include "processes/rank_processes.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/error.h"

namespace ropewalk::testing {
namespace {

struct Pipe {
  int read = -1;
  int write = -1;
};

Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) throw system_error(errno, "pipe");
  return {ends[0], ends[1]};
}

void write_all(int fd, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = write(fd, at, bytes);
    if (written <= 0) return;
    at += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

bool read_all(int fd, void* data, std::size_t bytes) {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = read(fd, at, bytes);
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

struct Wire {
  std::int64_t when_ns;
  std::int32_t code;
  std::int32_t error;
  std::int32_t length;
};

void report(int fd, bool error, Errc code, const std::string& text) {
  Wire wire{};
  wire.when_ns = std::chrono::steady_clock::now().time_since_epoch().count();
  wire.code = static_cast<std::int32_t>(code);
  wire.error = error ? 1 : 0;
  wire.length = static_cast<std::int32_t>(text.size());
  write_all(fd, &wire, sizeof wire);
  write_all(fd, text.data(), text.size());
}

void run_rank(int rank, int size, const RankOptions& options, const std::vector<Pipe>& ids,
              int report_to, const std::function<std::string(comm::Communicator&)>& body) {
  try {
    if (options.before) options.before(rank);
    comm::Runtime& runtime = comm::Runtime::process();
    runtime.set("TUNE", "0", "test");
    runtime.set("TOPOLOGY_CACHE", "off", "test");
    for (const auto& [name, value] : options.settings) runtime.set(name, value, "test");
    bootstrap::UniqueId id{};
    if (rank == 0) {
      id = bootstrap::make_unique_id(runtime.config(), runtime.context());
      for (int r = 1; r < size; ++r) {
        write_all(ids[static_cast<std::size_t>(r)].write, id.data(), id.size());
      }
    } else if (!read_all(ids[static_cast<std::size_t>(rank)].read, id.data(), id.size())) {
      throw Error(Errc::kPeerLost, "rank 0 ended before it gave the unique id");
    }
    const std::unique_ptr<comm::Communicator> comm =
        comm::Communicator::join(id, rank, size, runtime);
    try {
      const std::string text = body(*comm);
      comm->finalize();
      report(report_to, false, Errc::kInternal, text);
    } catch (const Error& error) {
      // Now, and not after the communicator's end: its sockets may linger.
      report(report_to, true, error.code(), error.what());
    }
  } catch (const Error& error) {
    report(report_to, true, error.code(), error.what());
  }
}

}  // namespace

RankProcesses::RankProcesses(int size, const RankOptions& options,
                             const std::function<std::string(comm::Communicator&)>& body) {
  std::vector<Pipe> ids(static_cast<std::size_t>(size));
  for (Pipe& id : ids) id = make_pipe();
  for (int r = 0; r < size; ++r) {
    const Pipe reports = make_pipe();
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid < 0) throw system_error(errno, "fork");
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      std::signal(SIGPIPE, SIG_IGN);
      for (const Rank& other : ranks_) close(other.report);
      close(reports.read);
      for (int other = 0; other < size; ++other) {
        const Pipe& id = ids[static_cast<std::size_t>(other)];
        if (other != r) close(id.read);
        if (r != 0) close(id.write);
      }
      run_rank(r, size, options, ids, reports.write, body);
      _exit(0);
    }
    close(reports.write);
    ranks_.push_back({pid, reports.read});
  }
  for (const Pipe& id : ids) {
    close(id.read);
    close(id.write);
  }
}

RankProcesses::~RankProcesses() {
  for (const Rank& rank : ranks_) {
    kill(rank.pid, SIGKILL);
    waitpid(rank.pid, nullptr, 0);
    close(rank.report);
  }
}

void RankProcesses::signal(int rank, int number) const {
  kill(ranks_[static_cast<std::size_t>(rank)].pid, number);
}

std::optional<Report> RankProcesses::wait(int rank, std::chrono::milliseconds timeout) {
  const int fd = ranks_[static_cast<std::size_t>(rank)].report;
  pollfd poll_for{fd, POLLIN, 0};
  if (poll(&poll_for, 1, static_cast<int>(timeout.count())) <= 0) return std::nullopt;
  Wire wire{};
  if (!read_all(fd, &wire, sizeof wire)) return std::nullopt;
  Report got;
  got.error = wire.error != 0;
  got.code = static_cast<Errc>(wire.code);
  got.when = std::chrono::steady_clock::time_point(std::chrono::nanoseconds(wire.when_ns));
  got.text.resize(static_cast<std::size_t>(wire.length));
  if (!read_all(fd, got.text.data(), got.text.size())) return std::nullopt;
  return got;
}

}  // namespace ropewalk::testing
