-- One step of a token bucket or a leaky bucket: the same sums as `../algorithm/gcra.rs`, one key per
-- call.
--
--   KEYS[1]  the key
--   ARGV     want, need, charge a denial (0 or 1),
--            nanoseconds in a tick (1 or 1000), what a token costs (ticks, parts of a tick), parts
--            that make a tick, tokens at most, debt at most, room without a debt (ticks, parts of
--            a tick), tokens at its end (0 or 1), how long a lease may last in microseconds,
--            and, only if tokens are returned: their number, and the time they were lent at in
--            microseconds (none for a refund, which is never late)
--   reply    tokens, the time in microseconds, debt before, debt after
--
-- Lua's numbers are doubles, exact below 2^53. The caller chooses the tick so that no debt in ticks
-- comes near that; parts, and all amounts of tokens, are at most 2^32.
--
-- The state is one time, 19 decimal digits of nanoseconds since the Unix epoch: more than a double
-- holds, so that seconds and nanoseconds are read and written apart. Redis keeps such a number
-- inside its object of 16 bytes. SET is the last command, so a script that fails has changed
-- nothing.
local want, need = tonumber(ARGV[1]), tonumber(ARGV[2])
local tick = tonumber(ARGV[4])
local cost, part, parts = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local tokens_max, debt_max = tonumber(ARGV[8]), tonumber(ARGV[9])
local room, room_part, tokens_min = tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])
local ttl, back, lent_at = tonumber(ARGV[13]), tonumber(ARGV[14]), tonumber(ARGV[15])

-- What n tokens are worth, in ticks and parts of a tick. The product of n and part may have 64
-- bits, so n is split into halves.
local function worth(n)
  local high = math.floor(n / 65536) * part
  local low = (high % parts) * 65536 + (n % 65536) * part
  return n * cost + math.floor(high / parts) * 65536 + math.floor(low / parts), low % parts
end

local function left_of(debt)
  local most = tokens_max - tokens_min
  local function fit(n)
    local ticks, rest = worth(n)
    return ticks < room - debt or (ticks == room - debt and rest <= room_part)
  end
  if debt > room then return 0 end
  -- The quotient is off by one at most.
  local n = math.floor((room - debt + room_part / parts) / (cost + part / parts))
  n = math.min(n, most)
  while n > 0 and not fit(n) do n = n - 1 end
  while n < most and fit(n + 1) do n = n + 1 end
  return tokens_min + n
end

local time = redis.call('TIME')
local seconds, micros = tonumber(time[1]), tonumber(time[2])
local now = seconds * 1000000 + micros
local ticks_per_second, ticks_now = 1000000000 / tick, micros * (1000 / tick)

local stored = 0
local value = redis.call('GET', KEYS[1])
if value then
  local of, nanos = value:match('^(%d%d%d%d%d%d%d%d%d%d)(%d%d%d%d%d%d%d%d%d)$')
  if not of then return redis.error_reply('FOREIGN ' .. KEYS[1] .. ' holds no time of ratelease') end
  -- Beyond the largest debt it need not be exact, since it is cut to that.
  local ahead = (tonumber(of) - seconds) * ticks_per_second + math.ceil(tonumber(nanos) / tick)
  stored = math.max(0, math.min(ahead - ticks_now, debt_max))
end

local before = stored
if back and (not lent_at or math.abs(now - lent_at) <= ttl) then
  if back >= tokens_max then
    before = 0
  else
    before = math.max(0, before - (worth(back)))
  end
end
local left = left_of(before)
local tokens, spent = 0, 0
if need <= left then
  tokens = math.min(math.max(want, need), left)
  spent = tokens
elseif ARGV[3] == '1' then
  spent = left
end
local ticks, rest = worth(spent)
local after = before + ticks
if rest > 0 then after = after + 1 end

-- A look writes nothing, and no call creates a key that means the same as its absence.
if after ~= stored then
  local nanos = (ticks_now + after) % ticks_per_second * tick
  local of = seconds + math.floor((ticks_now + after) / ticks_per_second)
  -- A second past the time, as the clock that expires keys may differ from TIME.
  local expires = (of + 1) * 1000 + math.ceil(nanos / 1000000)
  redis.call('SET', KEYS[1], string.format('%d%09d', of, nanos), 'PXAT', expires)
end
return { tokens, now, before, after }
