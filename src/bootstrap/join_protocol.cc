#include "bootstrap/join_protocol.h"

#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <sstream>

namespace ropewalk::bootstrap {
namespace {

struct ProcessState {
  char state = '?';
  std::uint64_t start_time = 0;
};

// proc_pid_stat(5): the name in field 2 may hold anything, so count from its last bracket.
std::optional<ProcessState> process_state(std::int32_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  const std::size_t bracket = line.rfind(')');
  if (bracket == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(bracket + 1));
  ProcessState found;
  fields >> found.state;
  std::string skipped;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  fields >> found.start_time;
  if (!fields) return std::nullopt;
  return found;
}

std::array<unsigned char, 16> pid_space() {
  std::string identity;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> identity;
  struct stat info {};
  if (stat("/proc/self/ns/pid", &info) == 0) {
    identity += fmt::format(" {} {}", info.st_dev, info.st_ino);
  } else {
    identity.clear();
  }
  std::array<unsigned char, 16> hash{};
  if (identity.empty()) {
    // Not known: equal to nobody's.
    randombytes_buf(hash.data(), hash.size());
  } else {
    crypto_generichash(hash.data(), hash.size(),
                       reinterpret_cast<const unsigned char*>(identity.data()), identity.size(),
                       nullptr, 0);
  }
  return hash;
}

}  // namespace

void RankRecord::write(WireWriter& out) const {
  write_address(out, address);
  out.raw(service);
  out.raw(pid_space);
  out.number(pid);
  out.number(start_time);
}

RankRecord RankRecord::read(WireReader& in) {
  RankRecord record;
  record.address = read_address(in);
  in.fill(record.service);
  in.fill(record.pid_space);
  record.pid = in.number<std::int32_t>();
  record.start_time = in.number<std::uint64_t>();
  return record;
}

RankRecord own_record(const std::array<unsigned char, 16>& service_token) {
  RankRecord record;
  record.service = service_token;
  record.pid_space = pid_space();
  record.pid = getpid();
  if (const auto state = process_state(record.pid)) record.start_time = state->start_time;
  return record;
}

bool process_ended(const RankRecord& record) {
  static const std::array<unsigned char, 16> here = pid_space();
  if (record.pid_space != here || record.start_time == 0) return false;
  // Without /proc nothing is known.
  if (!process_state(getpid())) return false;
  const auto state = process_state(record.pid);
  return !state || state->state == 'Z' || state->state == 'X' ||
         state->start_time != record.start_time;
}

std::string rank_list(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (!text.empty()) text += ", ";
    text += std::to_string(ranks[i]);
    if (last > i) text += fmt::format("{}{}", last > i + 1 ? "-" : ", ", ranks[last]);
    i = last + 1;
  }
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", text);
}

}  // namespace ropewalk::bootstrap
