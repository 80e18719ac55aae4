-- One step of a sliding log: the same as `sliding_log.rs`, one key per call.
--
--   KEYS[1]  the key
--   ARGV     want, need, charge a denial (0 or 1), hits that are owed (a log keeps none), limit, window
--            in microseconds,
--            and, only if tokens are returned: their number, and the time they are entered under
--            (none for a refund, which takes the newest)
--   reply    tokens, the time in microseconds, the time that they are entered under, entries, the
--            newest of them, the one that must leave before there is a token more (0 for none)
--
-- Lua's numbers are doubles, exact below 2^53; a time is, until the year 2255.
--
-- The state is a list of times, oldest first, at most 10 000. It is in order, so expired
-- entries are found by binary search, in 14 reads, and removed with the next write.
-- Everything is read before the first write, so that a script that fails has changed nothing. If
-- Redis is out of memory, it refuses the first write.
local key = KEYS[1]
local want, need = tonumber(ARGV[1]), tonumber(ARGV[2])
local limit, window = tonumber(ARGV[5]), tonumber(ARGV[6])
local back, epoch = tonumber(ARGV[7]), tonumber(ARGV[8])
-- Values of one RPUSH: Lua's stack holds some 8000.
local PUSH_MAX = 1000
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

local size = redis.pcall('LLEN', key)
if type(size) == 'table' then
  local text = redis.pcall('GET', key)
  if type(text) == 'string' and text:sub(1, 6) == 'moved ' then
    return redis.error_reply('RENAMED ' .. key)
  end
  return size
end
-- Of somebody else's entries before a newest of our own: as one that has long expired.
local function entry(index) return tonumber(redis.call('LINDEX', key, index) or 0) or 0 end
-- Entries before that time.
local function before(at)
  local low, high = 0, size
  while low < high do
    local middle = math.floor((low + high) / 2)
    if entry(middle) < at then low = middle + 1 else high = middle end
  end
  return low
end

local newest = tonumber(redis.call('LINDEX', key, -1) or 0)
if not newest then return redis.error_reply('FOREIGN ' .. key .. ' holds no log of ratelease') end
-- More than a window ahead: the clock was set back, and nothing would be leased until it caught up.
local gone = size
if newest <= now + window then gone = before(now - window + 1) end
local at = now
if gone < size then at = math.max(now, newest) end

local credit = 0
if back and epoch then
  credit = math.min(back, math.max(gone, before(epoch + 1)) - math.max(gone, before(epoch)))
elseif back then
  credit = math.min(back, size - gone)
end
local entries = size - gone - credit
local left = math.max(0, limit - entries)
local tokens, spent = 0, 0
if need <= left then
  tokens = math.min(math.max(want, need), left)
  spent = tokens
elseif ARGV[3] == '1' then
  spent = left
end
entries = entries + spent

-- A look writes nothing.
if credit > 0 or spent > 0 then
  if gone > 0 then redis.call('LPOP', key, gone) end
  if credit > 0 and epoch then
    redis.call('LREM', key, -credit, ARGV[8])
  elseif credit > 0 then
    redis.call('RPOP', key, credit)
  end
  local text, pushed = string.format('%d', at), 0
  while pushed < spent do
    local values = {}
    for index = 1, math.min(spent - pushed, PUSH_MAX) do values[index] = text end
    redis.call('RPUSH', key, unpack(values))
    pushed = pushed + #values
  end
  -- A second past the newest entry's end. Without a new one the old end is late enough.
  if spent > 0 then
    redis.call('PEXPIREAT', key, math.ceil((at + window) / 1000) + 1000)
  end
end

local last, leaving = 0, 0
if entries > 0 then last = entry(-1) end
if limit > 0 and entries >= limit then leaving = entry(-limit) end
return { tokens, now, at, entries, last, leaving }
