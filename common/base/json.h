// One way into JSON for a value that may be missing: null, with <key>_reason beside it; never 0.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

namespace attention {

using Json = nlohmann::ordered_json;

/// null where there is no value, no text, no finite number.
template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}
inline Json or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }
inline Json or_null(double number) { return std::isfinite(number) ? Json(number) : Json(); }

/// object[key] = value and, where that is null, object[reason_key] = reason.
inline void put(Json& object, const std::string& key, Json value, const std::string& reason,
                const std::string& reason_key) {
  const bool missing = value.is_null();
  object[key] = std::move(value);
  if (missing) object[reason_key] = reason;
}
inline void put(Json& object, const std::string& key, Json value, const std::string& reason) {
  put(object, key, std::move(value), reason, key + "_reason");
}

}  // namespace attention
