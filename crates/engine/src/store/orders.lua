-- Reads orders (order.lua says what an entry is), and the time.
--
--   KEYS[1]  the stream of orders
--   ARGV     the first place, as its milliseconds and its number, and most entries
--   reply    the time as TIME says it, and the entries as XRANGE does; those that are no orders, and
--            may be of any size, without their fields
local BYTES_MAX = 1024
local all = redis.call('XRANGE', KEYS[1], ARGV[1] .. '-' .. ARGV[2], '+', 'COUNT', ARGV[3])
for _, entry in ipairs(all) do
  local fields = entry[2]
  if #fields ~= 2 or #fields[1] + #fields[2] > BYTES_MAX then entry[2] = {} end
end
return { redis.call('TIME'), all }
