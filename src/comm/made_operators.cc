#include "comm/made_operators.h"

#include "core/error.h"

namespace ropewalk::comm {

namespace {

[[noreturn]] void refuse(int number) {
  throw Error(Errc::kInvalidArgument, "op: {} is not an operator of this communicator", number);
}

void require_sum(CarriedType type, int number) {
  if (!adds(type)) {
    throw Error(Errc::kInvalidArgument, "type: elements of type {} can be moved, but not reduced",
                name(type));
  }
  if (number == static_cast<int>(RedOp::kSum) || number == static_cast<int>(RedOp::kAvg)) return;
  throw Error(Errc::kInvalidArgument, "op: {} has the operators sum and avg, not {}", name(type),
              number >= 0 && number < MadeOperators::kFirst ? name(static_cast<RedOp>(number))
                                                            : "a pre-multiplied sum");
}

}  // namespace

int MadeOperators::add(const PreMulSum& made) {
  made_[next_] = made;
  return next_++;
}

void MadeOperators::remove(int number) {
  if (made_.erase(number) == 0) refuse(number);
}

const PreMulSum* MadeOperators::set(CollectiveCall& call, int number) const {
  if (call.carried != CarriedType::kNone) require_sum(call.carried, number);
  if (number >= 0 && number < kFirst) {
    call.op = static_cast<RedOp>(number);
    return nullptr;
  }
  const auto found = made_.find(number);
  if (found == made_.end()) refuse(number);
  const PreMulSum& made = found->second;
  if (made.type != call.type) {
    throw Error(Errc::kInvalidArgument, "op: the operator was made for {}, the call is for {}",
                name(made.type), name(call.type));
  }
  call.op = RedOp::kPreMulSum;
  call.scalar = made.scalar;
  return &made;
}

}  // namespace ropewalk::comm
