// AgreedError: what all ranks find out, since all have the same records.
#pragma once

#include "core/error.h"

namespace ropewalk::bootstrap {

/// An error that all ranks throw: none needs to notify the others.
class AgreedError : public Error {
 public:
  using Error::Error;
};

}  // namespace ropewalk::bootstrap
