// A value, or the reason why there is none.
#pragma once

#include <optional>
#include <string>
#include <utility>

namespace attention {

template <class T>
struct Known {
  std::optional<T> value;
  std::string reason;  // why there is none; "" where there is one

  Known() = default;
  Known(T known) : value(std::move(known)) {}
  static Known none(std::string why) {
    Known nothing;
    nothing.reason = std::move(why);
    return nothing;
  }

  explicit operator bool() const { return value.has_value(); }
  const T& operator*() const { return *value; }
  const T* operator->() const { return &*value; }
};

}  // namespace attention
