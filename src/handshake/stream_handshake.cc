#include "handshake/stream_handshake.h"

#include <algorithm>
#include <optional>

namespace ropewalk::handshake {

namespace gpus = transport::window;

StreamHandshake::StreamHandshake(const gpus::CudaApi& cuda, const HandshakeWords& words,
                                 executor::Control& control, int rank, bool check_tags)
    : cuda_(cuda),
      words_(words),
      rank_(rank),
      check_tags_(check_tags),
      watch_(words, control, rank, check_tags) {}

void StreamHandshake::write(const std::uint64_t& word, std::uint64_t value) {
  gpus::CuStreamOperation operation;
  operation.operation = gpus::kCuStreamWrite64;
  operation.address = words_.on_device(word);
  operation.value = value;
  pending_.push_back(operation);
}

void StreamHandshake::wait(const std::uint64_t& word, std::uint64_t value) {
  write(word, value);
  pending_.back().operation = gpus::kCuStreamWait64;
  pending_.back().flags = gpus::kCuStreamWaitEqual;
}

void StreamHandshake::shake(std::uint64_t value, HandshakePhase phase) {
  const bool enters = phase == HandshakePhase::kEntering;
  const auto word = [&](int rank, int by) -> std::uint64_t& {
    return enters ? words_.entered(rank, by) : words_.left(rank, by);
  };
  // All ranks begin with the next one, so that no two write to the same at once. The peers hear of
  // this rank first.
  for (int distance = 1; distance < words_.ranks(); ++distance) {
    write(word((rank_ + distance) % words_.ranks(), rank_), value);
  }
  write(words_.state(rank_), HandshakeState{value, phase}.word());
  for (int distance = 1; distance < words_.ranks(); ++distance) {
    wait(word(rank_, (rank_ + distance) % words_.ranks()), value);
  }
  if (!enters) wait(words_.spoiled(rank_), 0);
  for (int distance = 1; distance < words_.ranks(); ++distance) {
    write(word(rank_, (rank_ + distance) % words_.ranks()), 0);
  }
  write(words_.state(rank_), enters ? HandshakeState{value, HandshakePhase::kCopying}.word() : 0);
}

void StreamHandshake::submit(gpus::CuStream stream) {
  for (std::size_t done = 0; done < pending_.size();) {
    const std::size_t count = std::min(pending_.size() - done, gpus::kCuMostStreamOperations);
    cuda_.check(cuda_.stream_batch(stream, static_cast<unsigned>(count), pending_.data() + done, 0),
                "cuStreamBatchMemOp (a handshake)");
    done += count;
  }
}

void StreamHandshake::remember(const HandshakeCall& call, bool captured) noexcept {
  words_.remember(rank_, call, handshake_value(call, check_tags_),
                  captured ? std::optional(captured_++) : std::nullopt);
}

void StreamHandshake::enter(const HandshakeCall& call, bool captured, gpus::CuStream stream) {
  pending_.clear();
  shake(handshake_value(call, check_tags_), HandshakePhase::kEntering);
  submit(stream);
  // Only now: the number of a call that was refused belongs to the next one.
  remember(call, captured);
}

void StreamHandshake::leave(const HandshakeCall& call, gpus::CuStream stream) {
  pending_.clear();
  shake(handshake_value(call, check_tags_), HandshakePhase::kLeaving);
  submit(stream);
}

void StreamHandshake::note(const executor::CallTag& tag, bool captured) noexcept {
  remember({tag, 0}, captured);
}

}  // namespace ropewalk::handshake
