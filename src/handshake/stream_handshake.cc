#include "handshake/stream_handshake.h"

#include <optional>

namespace ropewalk::handshake {

namespace gpus = transport::window;

StreamHandshake::StreamHandshake(const gpus::CudaApi& cuda, const HandshakeWords& words,
                                 executor::Control& control, int rank, bool check_tags)
    : words_(words),
      rank_(rank),
      check_tags_(check_tags),
      operations_(cuda, words),
      watch_(words, control, rank, check_tags) {}

void StreamHandshake::shake(std::uint64_t value, HandshakePhase phase) {
  const bool enters = phase == HandshakePhase::kEntering;
  const auto word = [&](int rank, int by) -> std::uint64_t& {
    return enters ? words_.entered(rank, by) : words_.left(rank, by);
  };
  // All ranks begin with the next one, so that no two write to the same at once. The peers hear of
  // this rank first.
  for (int distance = 1; distance < words_.ranks(); ++distance) {
    operations_.write(word((rank_ + distance) % words_.ranks(), rank_), value);
  }
  operations_.write(words_.state(rank_), HandshakeState{value, phase}.word());
  for (int distance = 1; distance < words_.ranks(); ++distance) {
    operations_.wait_for(word(rank_, (rank_ + distance) % words_.ranks()), value);
  }
  if (!enters) operations_.wait_for(words_.spoiled(rank_), 0);
  for (int distance = 1; distance < words_.ranks(); ++distance) {
    operations_.write(word(rank_, (rank_ + distance) % words_.ranks()), 0);
  }
  operations_.write(words_.state(rank_),
                    enters ? HandshakeState{value, HandshakePhase::kCopying}.word() : 0);
}

void StreamHandshake::remember(const HandshakeCall& call, bool captured) noexcept {
  words_.remember(rank_, call, handshake_value(call, check_tags_),
                  captured ? std::optional(captured_++) : std::nullopt);
}

void StreamHandshake::enter(const HandshakeCall& call, bool captured, gpus::CuStream stream) {
  shake(handshake_value(call, check_tags_), HandshakePhase::kEntering);
  operations_.submit(stream, "cuStreamBatchMemOp (a handshake)");
  // Only now: the number of a call that was refused belongs to the next one.
  remember(call, captured);
}

void StreamHandshake::leave(const HandshakeCall& call, gpus::CuStream stream) {
  shake(handshake_value(call, check_tags_), HandshakePhase::kLeaving);
  operations_.submit(stream, "cuStreamBatchMemOp (a handshake)");
}

void StreamHandshake::note(const executor::CallTag& tag, bool captured) noexcept {
  remember({tag, 0}, captured);
}

}  // namespace ropewalk::handshake
