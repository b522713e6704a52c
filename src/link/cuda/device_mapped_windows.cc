#include "link/cuda/device_mapped_windows.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "core/log.h"
#include "executor/cuda/cuda_error.h"
#include "executor/cuda/owned.h"
#include "executor/cuda/pattern.h"

namespace ropewalk::link {
namespace {

constexpr std::size_t kTrialWords = 256;

}  // namespace

DeviceMappedWindows::DeviceMappedWindows(bootstrap::Bootstrap& bootstrap,
                                         MappedWindows::Drivers drivers,
                                         std::vector<int> host_of_rank, const WindowLayout& layout,
                                         cudaStream_t stream, Deadline deadline)
    : rank_(bootstrap.rank()),
      layout_(layout),
      windows_(bootstrap, std::move(drivers), std::move(host_of_rank), layout.bytes(), deadline),
      ends_(static_cast<std::size_t>(bootstrap.size())) {
  pin(bootstrap);
  try_stores(bootstrap, stream);
}

void DeviceMappedWindows::pin(bootstrap::Bootstrap& bootstrap) {
  std::vector<bool> fit(ends_.size(), true);
  for (std::size_t r = 0; r < ends_.size(); ++r) {
    const int peer = static_cast<int>(r);
    if (!windows_.between(peer)) continue;
    try {
      ends_[r].own = std::make_unique<PinnedRange>(windows_.own(peer), windows_.bytes());
      ends_[r].theirs = std::make_unique<PinnedRange>(windows_.theirs(peer), windows_.bytes());
    } catch (const Error& error) {
      log::warn(
          "rank {}: CUDA does not take the window of rank {}, the network carries its data: {}",
          rank_, peer, error.what());
      ends_[r] = {};
      fit[r] = false;
    }
  }
  windows_.keep(bootstrap, fit);
}

void DeviceMappedWindows::try_stores(bootstrap::Bootstrap& bootstrap, cudaStream_t stream) {
  const char* const launched = "kernel launch (trying stores to another host)";
  const char* const waited = "cudaStreamSynchronize (trying stores to another host)";
  const auto seed = [&](int from, int to) {
    return static_cast<std::uint64_t>(from) * ends_.size() + static_cast<std::uint64_t>(to);
  };
  const auto words = [](std::byte* at) { return reinterpret_cast<std::uint64_t*>(at); };
  for (std::size_t r = 0; r < ends_.size(); ++r) {
    const int peer = static_cast<int>(r);
    if (!windows_.between(peer)) continue;
    executor::check_cuda(executor::store_pattern(words(ends_[r].theirs->on_device()), kTrialWords,
                                                 seed(rank_, peer), stream),
                         launched);
  }
  executor::check_cuda(cudaStreamSynchronize(stream), waited);
  bootstrap.barrier(kNoDeadline);
  const executor::PinnedBuffer counts(sizeof(unsigned) * ends_.size());
  auto* const wrong = static_cast<unsigned*>(counts.data());
  std::fill_n(wrong, ends_.size(), 0U);
  for (std::size_t r = 0; r < ends_.size(); ++r) {
    const int peer = static_cast<int>(r);
    if (!windows_.between(peer)) continue;
    executor::check_cuda(executor::count_wrong_words(words(ends_[r].own->on_device()), kTrialWords,
                                                     seed(peer, rank_), wrong + r, stream),
                         launched);
  }
  executor::check_cuda(cudaStreamSynchronize(stream), waited);
  std::vector<bool> fit(ends_.size(), true);
  for (std::size_t r = 0; r < ends_.size(); ++r) {
    const int peer = static_cast<int>(r);
    if (!windows_.between(peer)) continue;
    if (wrong[r] != 0) {
      log::warn(
          "rank {}: of {} words that the GPU of rank {} stored into a window over {}, {} arrived "
          "wrong; the network carries the data of this pair",
          rank_, kTrialWords, peer, windows_.name(), wrong[r]);
      fit[r] = false;
    }
    std::memset(windows_.own(peer), 0, kTrialWords * sizeof(std::uint64_t));
  }
  for (std::size_t r = 0; r < ends_.size(); ++r) {
    if (!fit[r]) ends_[r] = {};
  }
  windows_.keep(bootstrap, fit);  // after all ranks have read and cleared the pattern
  for (std::size_t r = 0; r < ends_.size(); ++r) {
    if (!windows_.between(static_cast<int>(r))) ends_[r] = {};
  }
}

WindowSides DeviceMappedWindows::sides(int peer) const {
  const End& end = ends_[static_cast<std::size_t>(peer)];
  const int own = rank_ < peer ? 0 : 1;
  return {layout_, end.own->on_device(), end.theirs->on_device(), own, 1 - own};
}

std::byte* DeviceMappedWindows::their_board(int peer) const {
  return ends_[static_cast<std::size_t>(peer)].theirs->on_device() + layout_.board_offset(0);
}

const std::byte* DeviceMappedWindows::own_board(int peer) const {
  return ends_[static_cast<std::size_t>(peer)].own->on_device() + layout_.board_offset(0);
}

std::size_t DeviceMappedWindows::bytes() const noexcept {
  const auto used = [](const End& end) { return end.own != nullptr; };
  return static_cast<std::size_t>(std::ranges::count_if(ends_, used)) * windows_.bytes();
}

}  // namespace ropewalk::link
