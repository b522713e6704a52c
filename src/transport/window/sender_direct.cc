// Messages that are written straight into the receiver's registered memory.
//
// A receiver that gives its memory up must know that nothing is written there any more. Before a
// sender writes it sets a word at the receiver, and then looks whether the receiver has given up;
// the receiver says so first and then looks at that word. So one of the two sees the other.
#include <algorithm>

#include "transport/window/sender.h"
#include "transport/window/verify.h"

namespace ropewalk::transport::window {

bool WindowSender::may_write(const Requested& request, const void* data, std::size_t bytes,
                             const Registration* registration) {
  DirectWrites* const direct = mailbox_.path().direct_writes();
  return direct != nullptr && request.target.region != 0 && bytes >= direct->smallest_direct() &&
         direct->reach(request.target, data, bytes, registration);
}

void WindowSender::start_direct(Message& message) {
  if (options_.checksums) message.checksum = sum_of(message, 0, message.bytes);
  if (writing_++ == 0) set_writing(true);
  if (mailbox_.path().read_word(kAbandonedWord) != 0) {
    mailbox_.fail(Errc::kPeerLost, "the receiver cancelled a message before it was written");
  }
}

void WindowSender::set_writing(bool writing) {
  mailbox_.path().put_word(kWritingWord, writing ? 1 : 0);
  if (writing) mailbox_.path().order_puts_before_reads();
}

void WindowSender::start_direct_piece(std::size_t queue) {
  Message& message = *bouncing_.front();
  DirectWrites& direct = *mailbox_.path().direct_writes();
  const std::size_t bytes =
      std::min(direct.direct_piece_bytes(), message.bytes - message.next_offset);
  const Target target{message.target.region, message.target.offset + message.next_offset};
  direct.start_direct(static_cast<int>(queue), target, message.data + message.next_offset,
                      message.registration, bytes);
  Piece& piece = queues_[queue];
  piece.message = &message;
  piece.offset = message.next_offset;
  piece.bytes = bytes;
  message.next_offset += bytes;
  if (message.next_offset == message.bytes) bouncing_.pop_front();
}

void WindowSender::notify_direct(const Piece& piece) {
  Message& message = *piece.message;
  message.notified += piece.bytes;
  if (message.notified != message.bytes) return;
  Entry entry;
  entry.command = Command::kSendDirect;
  entry.id = message.id;
  entry.bytes = message.bytes;
  entry.payload[3] = message.checksum;
  mailbox_.write(entry);
  finish(message);
  if (message.finished && --writing_ == 0) set_writing(false);
}

}  // namespace ropewalk::transport::window
