#include "check_plugin/transfers.h"

#include <algorithm>

namespace ropewalk::check_plugin {
namespace {

// What an earlier use of the same variable may have left.
void* stale_request() {
  static int stale = 0;
  return &stale;
}
constexpr int kSizeGuard = -7;
constexpr std::size_t kSizes = 64;  // entries that NCCL has

std::string unwritten_size(int before) {
  return before == kUnwritten ? "not written" : "not written, or written as 0";
}

void check_written(Session& session, const void* request, Call call) {
  if (session.strict() && request == stale_request()) {
    throw Failed{fmt::format("{} writes *request, NULL when it cannot", name(call)), "not written"};
  }
}

}  // namespace

void* post_send(Session& session, void* comm, const Part& part) {
  void* request = session.strict() ? stale_request() : nullptr;
  session.expect(session.plugin().isend(comm, part, &request), Call::kIsend);
  check_written(session, request, Call::kIsend);
  return request;
}

void* post_receive(Session& session, void* comm, const std::vector<Part>& parts,
                   bool optional_completion) {
  void* const asked = reinterpret_cast<void*>(abi::kOptionalCompletion);
  void* request = optional_completion ? asked : session.strict() ? stale_request() : nullptr;
  session.expect(session.plugin().irecv(comm, parts, &request), Call::kIrecv);
  check_written(session, request, Call::kIrecv);
  if (request == asked) {
    throw Failed{"irecv writes *request also when it is 1 on entry", "not written"};
  }
  return request;
}

bool test_request(Session& session, void* request, std::vector<int>* sizes) {
  int done = session.strict() ? kUnwritten : 0;
  const std::size_t count = sizes == nullptr ? 0 : sizes->size();
  if (sizes != nullptr) sizes->resize(kSizes, session.strict() ? kSizeGuard : 0);
  session.expect(session.plugin().test(request, &done, sizes == nullptr ? nullptr : sizes->data()),
                 Call::kTest);
  if (session.strict() && done == kUnwritten) {
    throw Failed{"test writes *done, 0 or 1", "not written"};
  }
  if (sizes != nullptr) {
    const auto end = sizes->begin() + static_cast<std::ptrdiff_t>(count);
    if (session.strict() &&
        std::any_of(end, sizes->end(), [](int size) { return size != kSizeGuard; })) {
      throw Failed{fmt::format("test writes {} sizes", count), "more were written"};
    }
    sizes->resize(count);
  }
  return done != 0;
}

Sends::Sends(Session& session, void* comm, const Region& region, void* mhandle,
             std::vector<Message> messages, int limit)
    : session_(&session),
      comm_(comm),
      region_(&region),
      mhandle_(mhandle),
      messages_(std::move(messages)),
      limit_(static_cast<std::size_t>(limit)) {}

bool Sends::step() {
  while (posted_ < messages_.size() && requests_.size() < limit_) {
    if (may_post && !may_post(posted_)) break;
    const Message& message = messages_[posted_];
    void* request = post_send(*session_, comm_,
                              {region_->at(message.offset), message.bytes, message.tag, mhandle_});
    if (request == nullptr) break;
    requests_.push_back(request);
    ++posted_;
  }
  while (!requests_.empty()) {
    // From 2.20 NCCL asks for the size of a send.
    std::vector<int> size(1);
    const bool sized = session_->plugin().version() >= 8;
    if (!test_request(*session_, requests_.front(), sized ? &size : nullptr)) break;
    requests_.pop_front();
    if (on_done) on_done(completed_);
    ++completed_;
  }
  return completed_ == messages_.size();
}

Receives::Receives(Session& session, void* comm, const Region& region, void* mhandle, Groups groups,
                   int limit)
    : session_(&session),
      comm_(comm),
      region_(&region),
      mhandle_(mhandle),
      groups_(std::move(groups)),
      limit_(static_cast<std::size_t>(limit)) {}

bool Receives::step() {
  while (posted_ < groups_.size() && requests_.size() < limit_) {
    std::vector<Part> parts;
    for (const Slot& slot : groups_[posted_]) {
      parts.push_back({region_->at(slot.offset), slot.posted, slot.tag, mhandle_});
    }
    void* request = post_receive(*session_, comm_, parts, optional_completion);
    if (request == nullptr) break;
    requests_.push_back(request);
    ++posted_;
  }
  while (!requests_.empty()) {
    const std::vector<Slot>& group = groups_[completed_];
    // From 2.12, which brought version 5, NCCL clears them.
    const int before = session_->plugin().version() < 5 ? kUnwritten : 0;
    std::vector<int> sizes(group.size(), before);
    if (!test_request(*session_, requests_.front(), &sizes)) break;
    requests_.pop_front();
    for (std::size_t i = 0; i < group.size() && checks_sizes; ++i) {
      if (sizes[i] == static_cast<int>(group[i].expected)) continue;
      throw Failed{fmt::format("size {} of buffer {} in receive {} from test", group[i].expected, i,
                               completed_),
                   sizes[i] == before ? unwritten_size(before) : fmt::format("{}", sizes[i])};
    }
    if (on_done) on_done(completed_);
    ++completed_;
  }
  return completed_ == groups_.size();
}

Receives::Groups single_slots(const std::vector<Message>& messages) {
  Receives::Groups groups;
  for (const Message& message : messages) {
    groups.push_back({{message.offset, message.bytes, message.bytes, message.tag}});
  }
  return groups;
}

void transfer(Session& session, void* comm, const std::vector<Message>& messages,
              std::uint64_t seed, int limit, std::size_t posted) {
  std::size_t bytes = 1;
  for (const Message& message : messages) {
    bytes = std::max(bytes, message.offset + std::max(posted, message.bytes));
  }
  Region region(bytes);
  void* mhandle = region.register_on(session, comm);
  session.in_thread([&] {
    if (session.sender()) {
      for (std::size_t i = 0; i < messages.size(); ++i) {
        region.fill(messages[i].offset, messages[i].bytes, seed + i);
      }
      Sends sends(session, comm, region, mhandle, messages, limit);
      run(session, "all sends complete", sends);
    } else {
      Receives::Groups groups = single_slots(messages);
      for (std::vector<Slot>& group : groups) {
        group[0].posted = std::max(posted, group[0].posted);
      }
      Receives receives(session, comm, region, mhandle, std::move(groups), limit);
      receives.on_done = [&](std::size_t number) {
        const Message& message = messages[number];
        const auto wrong = region.difference(message.offset, message.bytes, seed + number);
        if (wrong) {
          throw Failed{fmt::format("message {} of {} bytes as it was sent", number, message.bytes),
                       *wrong};
        }
        const std::size_t room = std::max(posted, message.bytes) - message.bytes;
        const auto written = region.first_written(message.offset + message.bytes, room);
        if (written) {
          throw Failed{
              fmt::format("no write behind the {} bytes of message {}", message.bytes, number),
              fmt::format("byte {} behind them is written", *written)};
        }
      };
      run(session, "all receives complete", receives);
      region.check_guards();
    }
  });
  session.expect(session.plugin().dereg_mr(comm, mhandle), Call::kDeregMr);
}

void send_to_self(Session& session, void* send, void* receive, std::uint64_t seed) {
  constexpr std::size_t kBytes = 10'000;
  Region from(kBytes);
  Region to(kBytes);
  from.fill(0, kBytes, seed);
  void* from_handle = from.register_on(session, send);
  void* to_handle = to.register_on(session, receive);
  const std::vector<Message> messages = {{0, kBytes, 0}};
  Sends sends(session, send, from, from_handle, messages);
  Receives receives(session, receive, to, to_handle, single_slots(messages));
  run(session, "a message to itself completes", sends, receives);
  if (const auto wrong = to.difference(0, kBytes, seed)) {
    throw Failed{"a message to itself as it was sent", *wrong};
  }
  session.expect(session.plugin().dereg_mr(send, from_handle), Call::kDeregMr);
  session.expect(session.plugin().dereg_mr(receive, to_handle), Call::kDeregMr);
}

}  // namespace ropewalk::check_plugin
