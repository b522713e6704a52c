#include "bootstrap/root.h"

#include <sodium.h>

#include "bootstrap/bootstrap.h"
#include "core/log.h"
#include "core/network_interfaces.h"
#include "core/socket.h"
#include "core/units.h"

namespace ropewalk::bootstrap {
namespace {

// How long a failed join still answers: ranks that come later learn why instead of finding nobody.
constexpr std::chrono::milliseconds kFailureStay{10'000};
// How long the ranks of this process wait for that, as nobody answers any more when it ends.
constexpr std::chrono::milliseconds kOwnWait{500};
// How long a finished one waits for its last messages to be read.
constexpr std::chrono::milliseconds kSuccessStay{5'000};

std::vector<std::byte> failure_message(Errc code, const std::string& text) {
  WireWriter out;
  out.number(static_cast<std::uint8_t>(JoinMessage::kFailure));
  out.number(static_cast<std::uint8_t>(code));
  out.text(text);
  return out.take();
}

}  // namespace

Root::Root(Service& service, FileDescriptor socket, const UniqueIdParts& id,
           Service::Clock::time_point deadline)
    : service_(service),
      started_(Service::Clock::now()),
      deadline_(Service::Clock::time_point::max()) {
  listener_ = std::make_unique<Listener>(
      service_, std::move(socket), id.secret, id.service,
      [this](std::unique_ptr<Connection> connection) { on_joining(std::move(connection)); },
      [this](const std::string& reason) {
        fail(Errc::kSystem,
             "the process that made the unique id cannot take more ranks: " + reason);
      });
  set_deadline(deadline);
}

Root::~Root() {
  if (timer_) service_.cancel(*timer_);
}

void Root::set_deadline(Service::Clock::time_point deadline) {
  if (deadline >= deadline_) return;
  deadline_ = deadline;
  if (timer_) service_.cancel(*timer_);
  timer_ = service_.at(deadline_, [this] {
    timer_.reset();
    on_deadline();
  });
}

// A copy: what set_owner() replaces may have held the last other one.
// NOLINTNEXTLINE(performance-unnecessary-value-param)
void Root::refuse(std::shared_ptr<Connection> connection, Errc code, const std::string& text) {
  Connection* key = connection.get();
  connection->set_owner({{}, {}, [this, key](const Closing&) {
                           // The other end closes when it has read the answer.
                           std::erase_if(refused_, [&](std::shared_ptr<Connection>& entry) {
                             if (entry.get() != key) return false;
                             service_.defer([gone = entry] {});
                             return true;
                           });
                           tell_own(false);
                         }});
  refused_.push_back(connection);
  connection->send(failure_message(code, text));
}

void Root::on_joining(std::unique_ptr<Connection> made) {
  const std::shared_ptr<Connection> connection = std::move(made);
  const Claims claims = connection->claims();
  if (claims.purpose != Claims::Purpose::kJoin) {
    refuse(connection, Errc::kInvalidUsage, "the root service of a unique id only serves joining");
    return;
  }
  if (stage_ == Stage::kFailed) {
    late_.insert(claims.rank);
    refuse(connection, failure_code_, failure_);
    return;
  }
  if (stage_ != Stage::kGathering) {
    refuse(connection, Errc::kInvalidUsage,
           fmt::format("rank {}: the unique id was used already, for a communicator of {} ranks; "
                       "make a new one for each communicator",
                       claims.rank, size_));
    return;
  }
  std::string wrong;
  Errc code = Errc::kInvalidArgument;
  if (claims.size < 1 || claims.size > kMaxRanks) {
    wrong = fmt::format("rank {} gives the number of ranks {}", claims.rank, claims.size);
  } else if (claims.rank < 0 || claims.rank >= claims.size) {
    wrong = fmt::format("rank {} is outside 0 to {} (number of ranks {})", claims.rank,
                        claims.size - 1, claims.size);
  } else if (size_ != 0 && claims.size != size_) {
    wrong = fmt::format("number of ranks differs: rank {} gives {}, rank {} gives {}", claims.rank,
                        claims.size, first_rank_, size_);
  } else if (joining_.contains(claims.rank)) {
    code = Errc::kInvalidUsage;
    wrong = fmt::format("rank {} of {} was given to two callers", claims.rank, claims.size);
    const auto& record = joining_[claims.rank].record;
    if (record) {
      wrong += fmt::format("; one is process {} at {}", record->pid, record->address.text());
    }
  }
  if (!wrong.empty()) {
    fail(code, wrong);
    refuse(connection, code, wrong);
    return;
  }
  if (size_ == 0) {
    size_ = claims.size;
    first_rank_ = claims.rank;
  }
  const int rank = claims.rank;
  joining_[rank].connection = connection;
  connection->set_owner(
      {{},
       [this, rank](std::vector<std::byte>& message) { on_message(rank, message); },
       [this, rank](const Closing&) { on_closed(rank); }});
}

void Root::on_message(int rank, const std::vector<std::byte>& message) {
  WireReader in(message);
  JoiningRank& joining = joining_[rank];
  switch (static_cast<JoinMessage>(in.number<std::uint8_t>())) {
    case JoinMessage::kRecord: {
      if (stage_ != Stage::kGathering || joining.record) break;
      joining.record = RankRecord::read(in);
      const auto milliseconds = in.number<std::int64_t>();
      if (milliseconds >= 0) {
        set_deadline(Service::Clock::now() + std::chrono::milliseconds(milliseconds));
      }
      if (++num_records_ == size_) send_table();
      return;
    }
    case JoinMessage::kReady:
      if (stage_ != Stage::kLinking || joining.ready) break;
      joining.ready = true;
      if (++num_ready_ == size_) release();
      return;
    case JoinMessage::kCannot:
      if (stage_ == Stage::kLinking) {
        fail(Errc::kPeerLost, fmt::format("rank {}: {}", rank, in.text(4096)));
      }
      return;
    case JoinMessage::kTable:
    case JoinMessage::kGo:
    case JoinMessage::kFailure: break;
  }
  if (stage_ == Stage::kGathering || stage_ == Stage::kLinking) {
    fail(Errc::kInternal, fmt::format("rank {} sent an unexpected message", rank));
  }
}

void Root::on_closed(int rank) {
  JoiningRank& joining = joining_[rank];
  service_.defer([gone = std::move(joining.connection)] {});
  joining.connection = nullptr;
  if (stage_ == Stage::kGathering || stage_ == Stage::kLinking) {
    fail(Errc::kPeerLost,
         fmt::format("rank {} of {} died while the communicator was joining", rank, size_));
    return;
  }
  tell_own(false);
  for (const auto& [other, entry] : joining_) {
    if (entry.connection) return;
  }
  if (stage_ == Stage::kDone) finish();
}

void Root::send_table() {
  stage_ = Stage::kLinking;
  WireWriter out;
  out.number(static_cast<std::uint8_t>(JoinMessage::kTable));
  for (const auto& [rank, joining] : joining_) joining.record->write(out);
  // A copy: sending may meet a closed connection, which ends in fail().
  const std::vector<std::byte> table = out.take();
  for (const auto& [rank, joining] : joining_) {
    if (joining.connection) joining.connection->send(table);
  }
}

void Root::release() {
  stage_ = Stage::kDone;
  listener_.reset();
  WireWriter out;
  out.number(static_cast<std::uint8_t>(JoinMessage::kGo));
  for (const auto& [rank, joining] : joining_) {
    if (joining.connection) joining.connection->send(out.bytes());
  }
  log::info(log::kBootstrap, "bootstrap: {} ranks joined in {}", size_,
            format_duration(Service::Clock::now() - started_));
  finish_soon(kSuccessStay);
}

void Root::fail(Errc code, const std::string& text) {
  if (stage_ == Stage::kFailed || stage_ == Stage::kDone) return;
  stage_ = Stage::kFailed;
  failure_code_ = code;
  failure_ = text;
  log::info(log::kBootstrap, "bootstrap: joining failed: {}", text);
  const std::vector<std::byte> message = failure_message(code, text);
  // Who comes after a deadline finds nobody anyway.
  own_waits_ = code != Errc::kTimeout;
  for (const auto& [rank, joining] : joining_) {
    if (joining.connection && !(own_waits_ && is_own(joining))) joining.connection->send(message);
  }
  finish_soon(own_waits_ ? kOwnWait : kFailureStay);
  tell_own(false);
}

bool Root::is_own(const JoiningRank& joining) const {
  return joining.record && joining.record->service == service_.token();
}

void Root::tell_own(bool too_late) {
  if (!own_waits_) return;
  if (!too_late) {
    std::set<int> came = late_;
    for (const auto& [rank, joining] : joining_) {
      if (joining.connection && !is_own(joining)) return;
      came.insert(rank);
    }
    if (!refused_.empty() || std::ssize(came) < size_) return;
  }
  own_waits_ = false;
  const std::vector<std::byte> message = failure_message(failure_code_, failure_);
  for (const auto& [rank, joining] : joining_) {
    if (joining.connection && is_own(joining)) joining.connection->send(message);
  }
  finish_soon(kFailureStay);
}

void Root::on_deadline() {
  if (size_ == 0) {
    log::info(log::kBootstrap, "bootstrap: no rank came to a unique id in time");
    finish();
    return;
  }
  std::vector<int> missing;
  for (int rank = 0; rank < size_; ++rank) {
    const auto joining = joining_.find(rank);
    const bool there =
        joining != joining_.end() &&
        (stage_ == Stage::kLinking ? joining->second.ready : joining->second.record.has_value());
    if (!there) missing.push_back(rank);
  }
  const std::string time = format_duration(
      std::chrono::round<std::chrono::milliseconds>(Service::Clock::now() - started_));
  if (stage_ == Stage::kLinking) {
    fail(Errc::kTimeout, fmt::format("{} of {} did not link with the next rank within {}",
                                     rank_list(missing), size_, time));
  } else {
    fail(Errc::kTimeout,
         fmt::format("{} of {} did not join within {}", rank_list(missing), size_, time));
  }
}

void Root::finish_soon(std::chrono::milliseconds delay) {
  if (timer_) service_.cancel(*timer_);
  timer_ = service_.after(delay, [this] {
    timer_.reset();
    if (own_waits_) {
      tell_own(true);
    } else {
      finish();
    }
  });
}

void Root::finish() { service_.drop(this); }

// ---- unique_id.h --------------------------------------------------------------------------------

UniqueId make_unique_id(const Config& config, Context& context) {
  require_sodium();
  const InterfaceAddress interface = best_interface(config.text(Setting::kSocketIfname));
  UniqueIdParts parts;
  FileDescriptor socket = listen_on(interface.address, &parts.address);
  randombytes_buf(parts.secret.data(), parts.secret.size());
  randombytes_buf(parts.service.data(), parts.service.size());
  log::info(log::kBootstrap, "bootstrap: unique id at {} ({})", parts.address.text(),
            interface.name);
  const Deadline deadline = deadline_of(config);
  Service& service = *context.service();
  const auto shared = std::make_shared<FileDescriptor>(std::move(socket));
  service.post([&service, shared, parts, deadline] {
    service.keep(std::make_shared<Root>(service, std::move(*shared), parts, deadline));
  });
  return encode_unique_id(parts);
}

UniqueId make_unique_id(const Config& config) { return make_unique_id(config, Context::process()); }

}  // namespace ropewalk::bootstrap
