#include "broadcast.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <string>

#include "library.h"

namespace software_sisci {
namespace {

constexpr std::size_t kLine = 64;

template <typename Word>
void store_as(std::byte* target, const std::byte* source) {
  Word word = 0;
  std::memcpy(&word, source, sizeof word);
  std::atomic_ref(*reinterpret_cast<Word*>(target)).store(word);
}

bool current(const Group::Member& member, unsigned adapter) {
  return member.entry->generation == member.generation && member.entry->available[adapter];
}

}  // namespace

Group::~Group() {
  for (const Member& member : members_) close_memory(member.file, member.memory, member.bytes);
}

bool Group::known(const SegmentEntry& entry) const {
  return std::any_of(members_.begin(), members_.end(), [&](const Member& member) {
    return member.entry == &entry && member.generation == entry.generation;
  });
}

void Group::look(Library& mine) {
  State& state = mine.fabric().state();
  const std::uint32_t change = state.change;
  if (looked_ && change == seen_) return;
  const Fabric::Lock lock(mine.fabric());
  std::erase_if(members_, [&](const Member& member) {
    if (current(member, adapter_)) return false;
    close_memory(member.file, member.memory, member.bytes);
    return true;
  });
  bool all = true;
  for (std::size_t i = 0; i < state.segments_end; ++i) {
    const SegmentEntry& entry = state.segments[i];
    if (entry.generation % 2 == 0 || !entry.broadcast || entry.id != id_ ||
        !entry.available[adapter_] || known(entry)) {
      continue;
    }
    Member member{&entry, entry.generation, newest_ + 1, entry.host, entry.bytes, -1, nullptr};
    member.file = open_file_of(state.processes[entry.process].pid, entry.file);
    if (member.file < 0) {  // its process is about to end, or the next look succeeds
      all = false;
      continue;
    }
    try {
      member.memory = map_file(member.file, rounded(member.bytes));
    } catch (...) {
      close(member.file);
      throw;
    }
    members_.push_back(member);
    ++newest_;
  }
  seen_ = change;
  looked_ = all;
}

std::size_t Group::bytes(Library& mine) {
  const std::lock_guard lock(lock_);
  look(mine);
  std::size_t least = 0;
  for (const Member& member : members_) {
    least = least == 0 ? member.bytes : std::min(least, member.bytes);
  }
  return least;
}

std::uint64_t Group::for_each(Library& mine, const std::function<void(const Member&)>& visit) {
  const std::lock_guard lock(lock_);
  look(mine);
  const auto settings = mine.settings();
  if (!settings->link_up(mine.host(), adapter_)) return newest_;
  for (const Member& member : members_) {
    if (settings->link_up(member.host, adapter_)) visit(member);
  }
  return newest_;
}

void Group::store(Library& mine, std::size_t offset, const std::byte* data, std::size_t bytes) {
  (void)for_each(mine, [&](const Member& member) {
    if (offset >= member.bytes) return;
    std::memcpy(member.memory + offset, data, std::min(bytes, member.bytes - offset));
  });
}

std::vector<Block> blocks_that_differ(const std::byte* now, const std::byte* before,
                                      std::size_t words) {
  static constexpr std::array<std::byte, kLine> kZeros{};
  std::vector<Block> blocks;
  for (std::size_t line = 0; line < words * kWord; line += kLine) {
    const std::size_t length = std::min(kLine, words * kWord - line);
    const std::byte* const old = before == nullptr ? kZeros.data() : before + line;
    if (std::memcmp(now + line, old, length) == 0) continue;
    for (std::size_t word = 0; word < length; word += kWord) {
      std::uint64_t a = 0;
      std::uint64_t b = 0;
      std::memcpy(&a, now + line + word, kWord);
      std::memcpy(&b, old + word, kWord);
      if (a == b) continue;
      const auto first = static_cast<std::size_t>(std::countr_zero(a ^ b)) / 8;
      const auto last = static_cast<std::size_t>(63 - std::countl_zero(a ^ b)) / 8;
      std::size_t bytes = 1;
      while (first / bytes != last / bytes) bytes *= 2;
      blocks.push_back({line + word + first / bytes * bytes, bytes});
    }
  }
  return blocks;
}

void store_block(std::byte* target, const std::byte* source, std::size_t bytes) {
  switch (bytes) {
    case 8: return store_as<std::uint64_t>(target, source);
    case 4: return store_as<std::uint32_t>(target, source);
    case 2: return store_as<std::uint16_t>(target, source);
    default: return store_as<std::uint8_t>(target, source);
  }
}

}  // namespace software_sisci
