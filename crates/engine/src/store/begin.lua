-- Begins a count under its new name with what it was under the former one, once for each mark that
-- move.lua has left.
--
--   KEYS[1]  the new name
--   KEYS[2]  the key of the number of the mark that the count has begun with
--   ARGV     milliseconds that the count lasts, the number of the mark, that of the mark at the new
--            name which it replaces (2^64 - 1 for none), and what the count was, as move.lua says it
--   reply    1 if it begins, 0 if there is a count, or there was one and has become empty; or the mark
--            at the new name, as move.lua says it, and 1 if the count had begun before, else 0
--
-- A count becomes empty when its slots are given back or its bucket is full: then its key is gone. The
-- number of its mark stays for longer than the mark says what the count was.
local key, begun = KEYS[1], KEYS[2]
local lasts, id, replaced, value = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]
local NUMBER_LASTS_MIN = 60000
-- Values of one RPUSH: Lua's stack holds some 8000.
local PUSH_MAX = 1000
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local has_begun = redis.call('GET', begun) == id
local function note()
  redis.call('SET', begun, id, 'PX', math.max(lasts, NUMBER_LASTS_MIN) + 1000)
end

local old = redis.pcall('GET', key)
-- As in move.lua.
local BYTES_MAX = 262144
if type(old) == 'string' and #old > BYTES_MAX then
  return redis.error_reply('FOREIGN ' .. key .. ' holds no count of ratelease')
end
if type(old) == 'string' and old:sub(1, 6) == 'moved ' then
  local _, last, name, number, ends = old:find('^moved (%x+) 0 (%d+) (%d+) ')
  if not name then
    _, last, name, ends = old:find('^moved (%x+) (%d+) ')
    number = ends
  end
  if not name then return 0 end
  if has_begun or number ~= replaced then
    local rest = math.max(0, tonumber(ends) - now)
    return { name, number, rest > 0 and old:sub(last + 1) or '', rest, has_begun and 1 or 0 }
  end
elseif old or has_begun then
  if not has_begun then note() end
  return 0
end

if value:sub(1, 5) == 'text ' then
  redis.call('SET', key, value:sub(6), 'PX', lasts)
  note()
  return 1
end
if old then redis.call('DEL', key) end
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
if value ~= '' then redis.call('PEXPIREAT', key, now + lasts + 1000) end
note()
return 1
