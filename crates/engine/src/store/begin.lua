-- Begins a count under its new name with what it was under the former one, unless it has begun.
--
--   KEYS[1]  the new name
--   ARGV     milliseconds that it lasts, and what it was, as move.lua says it
--   reply    1 if it begins, else 0
local key, lasts, value = KEYS[1], tonumber(ARGV[1]), ARGV[2]
-- Values of one RPUSH: Lua's stack holds some 8000.
local PUSH_MAX = 1000
if redis.pcall('GET', key) then return 0 end
if value:sub(1, 5) == 'text ' then
  redis.call('SET', key, value:sub(6), 'PX', lasts)
  return 1
end
local entries = {}
local function push()
  if #entries > 0 then redis.call('RPUSH', key, unpack(entries)) end
  entries = {}
end
for entry in value:gmatch('%d+') do
  entries[#entries + 1] = entry
  if #entries == PUSH_MAX then push() end
end
push()
local time = redis.call('TIME')
redis.call('PEXPIREAT', key, tonumber(time[1]) * 1000 + lasts + 1000)
return 1
