// The request of a receive, grouped or not, which the providers' receiving ends have in common.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>

#include "transport/few.h"
#include "transport/transport.h"

namespace ropewalk::transport {

/// Receives posted together at one receiving end, which finishes each by itself.
///
/// `Receiver` has a type Posted with `buffer`, `bytes` (of the message) and `finished`, and where
/// it can put a message's rest elsewhere, `rest` and `placed`; the functions post(Posted&),
/// withdraw(Posted&) for one that is given up unfinished, progress() (or progress(span) of those
/// that are asked for), and throw_if_failed(); and the number of requests, `active_`. Posted
/// objects do not move.
///
/// Threads: those of the receiver. Lifetime: must not outlive the receiver.
template <typename Receiver>
class ReceiveRequest final : public Request {
 public:
  ReceiveRequest(Receiver& receiver, std::span<const ReceiveBuffer> buffers)
      : receiver_(receiver), posted_(buffers.size()), sizes_(buffers.size()) {
    ++receiver_.active_;
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      posted_.all()[i].buffer = buffers[i];
      receiver_.post(posted_.all()[i]);
    }
  }
  ReceiveRequest(const ReceiveRequest&) = delete;
  ReceiveRequest& operator=(const ReceiveRequest&) = delete;
  ~ReceiveRequest() override {
    --receiver_.active_;
    for (Posted& posted : posted_.all()) {
      if (!posted.finished) receiver_.withdraw(posted);
    }
  }
  std::optional<std::size_t> test() override {
    if (!finished()) {
      if constexpr (requires { receiver_.progress(posted_.all()); }) {
        receiver_.progress(posted_.all());
      } else {
        receiver_.progress();
      }
      if (!finished()) {
        receiver_.throw_if_failed();
        return std::nullopt;
      }
    }
    std::size_t total = 0;
    for (std::size_t i = 0; i < posted_.size(); ++i) {
      total += sizes_.all()[i] = posted_.all()[i].bytes;
    }
    return total;
  }
  [[nodiscard]] bool at_hand() const override { return finished(); }
  [[nodiscard]] std::span<const std::size_t> sizes() const override { return sizes_.all(); }
  void place_rest(std::size_t offset, void* data, std::size_t bytes) override {
    if constexpr (kHasRest)
      posted_.all().front().rest = {offset, static_cast<std::byte*>(data), bytes};
  }
  [[nodiscard]] bool placed() const override {
    if constexpr (kHasRest) return posted_.all().front().placed;
    return false;
  }

 private:
  using Posted = typename Receiver::Posted;
  static constexpr bool kHasRest = requires(Posted & posted) { posted.placed; };
  [[nodiscard]] bool finished() const {
    const std::span<const Posted> all = posted_.all();
    return std::all_of(all.begin(), all.end(),
                       [](const Posted& posted) -> bool { return posted.finished; });
  }
  Receiver& receiver_;
  Few<Posted> posted_;
  Few<std::size_t> sizes_;
};

}  // namespace ropewalk::transport
