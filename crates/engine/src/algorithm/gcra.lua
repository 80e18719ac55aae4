-- One step of a token bucket or a leaky bucket: the same sums as `gcra.rs`, one key per
-- call.
--
--   KEYS[1]  the key
--   ARGV     want, need, charge a denial (0 or 1), hits that are owed,
--            nanoseconds in a tick (1 or 1000), what a token costs (ticks, parts of a tick), parts
--            that make a tick (the limit's requests), tokens at most, debt at most, room without a
--            debt (ticks, parts of a tick), tokens at its end (1 for the slots of a leaky bucket,
--            else 0), the window in microseconds, the longest debt that is not the mistake of a clock,
--            how long a lease may last in microseconds, the largest debt that incurred costs can make,
--            and, only if tokens are returned: their number, and the time they were leased at in
--            microseconds (none for a refund, which is never late)
--   reply    tokens, the time in microseconds, debt before, debt after
--
-- Lua's numbers are doubles, exact up to 2^53. The caller chooses the tick so that no debt in ticks
-- comes near that; parts, and all amounts of tokens, are at most 2^53.
--
-- The state is one time, 19 decimal digits of nanoseconds since the Unix epoch: more than a double
-- holds, so that seconds and nanoseconds are read and written apart. A colon and the requests of the
-- limit that wrote it follow, in hexadecimal digits, so that the value takes an object of 48 bytes;
-- and where tokens are owed beyond the bucket, a colon and their number, a colon and the capacity of
-- the bucket that could not hold them; or, where incurred costs made the debt larger than that of an
-- empty bucket, ':0:' and the tokens of the debt. If one of these numbers has more than 32 bits, the
-- first colon is '=', so that versions that count no further take it for a foreign value. A time alone
-- was written by version 0.2, and counts as written under the limit that asks. SET is the last command, so a script that fails has changed nothing.
local want, need = tonumber(ARGV[1]), tonumber(ARGV[2])
local owed, tick = tonumber(ARGV[4]), tonumber(ARGV[5])
local cost, part, parts = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local tokens_max, debt_max = tonumber(ARGV[9]), tonumber(ARGV[10])
local room, room_part, tokens_min = tonumber(ARGV[11]), tonumber(ARGV[12]), tonumber(ARGV[13])
local window, longest = tonumber(ARGV[14]), tonumber(ARGV[15])
local ttl, owed_max = tonumber(ARGV[16]), tonumber(ARGV[17])
local back, lent_at = tonumber(ARGV[18]), tonumber(ARGV[19])
local TOKENS_MAX, BITS_32 = 9007199254740991, 4294967296
local CENTURY_US = 3153600000000000

-- The quotient and the rest of n * part / parts, for a product of more than 64 bits: it is divided while
-- it is computed, a bit of n after the other, and no number exceeds 2^54, which only even ones reach.
local function shares(n, part, parts)
  local whole, rest, bit = 0, 0, 9007199254740992
  while bit >= 1 do
    whole, rest = 2 * whole, 2 * rest
    if rest >= parts then whole, rest = whole + 1, rest - parts end
    if n >= bit then
      n, rest = n - bit, rest - (parts - part)
      if rest < 0 then rest = rest + parts else whole = whole + 1 end
    end
    bit = bit / 2
  end
  return whole, rest
end

-- What n tokens are worth at a rate, in ticks and parts of a tick. Mostly the product of n and part
-- has at most 64 bits, and n is split into halves.
local function worth_at(n, cost, part, parts)
  if n >= BITS_32 or parts > BITS_32 then
    local whole, rest = shares(n, part, parts)
    return n * cost + whole, rest
  end
  local high = math.floor(n / 65536) * part
  local low = (high % parts) * 65536 + (n % 65536) * part
  return n * cost + math.floor(high / parts) * 65536 + math.floor(low / parts), low % parts
end

-- The same, rounded up.
local function cost_at(n, cost, part, parts)
  local ticks, rest = worth_at(n, cost, part, parts)
  return rest > 0 and ticks + 1 or ticks
end

-- The tokens, at most so many, that are earned in these ticks and parts of a tick.
local function earned_at(ticks, rest, most, cost, part, parts)
  local function fit(n)
    local needed, more = worth_at(n, cost, part, parts)
    return needed < ticks or (needed == ticks and more <= rest)
  end
  -- The quotient is off by a few at most.
  local n = math.min(math.floor((ticks + rest / parts) / (cost + part / parts)), most)
  while n > 0 and not fit(n) do n = n - 1 end
  while n < most and fit(n + 1) do n = n + 1 end
  return n
end

-- A debt with incurred costs, which may exceed a full bucket; then all that is owed is one debt.
local function with_owed(debt, beyond, owed)
  local sum = debt + cost_at(math.min(owed, TOKENS_MAX), cost, part, parts)
  if owed == 0 or sum <= longest then return sum, beyond end
  return math.min(sum + cost_at(beyond, cost, part, parts), owed_max), 0
end

-- The tokens of a debt that exceeds an empty bucket's, rounded up; 0 for a smaller one.
local function excess_of(debt)
  if debt <= longest then return 0 end
  return math.min(earned_at(debt, 0, TOKENS_MAX, cost, part, parts) + 1, TOKENS_MAX)
end

local function left_of(debt)
  if debt > room then return 0 end
  return tokens_min + earned_at(room - debt, room_part, tokens_max - tokens_min, cost, part, parts)
end

local time = redis.call('TIME')
local seconds, micros = tonumber(time[1]), tonumber(time[2])
local now = seconds * 1000000 + micros
local ticks_per_second, ticks_per_us = 1000000000 / tick, 1000 / tick
local ticks_now = micros * ticks_per_us

-- What a debt of `us` at another rate, and tokens beyond its bucket, are in this limit's bucket.
local function owed_in_tokens(us, beyond, old_cost, old_part, requests)
  local whole = earned_at(us, 0, TOKENS_MAX, old_cost, old_part, requests)
  local rest = us - (worth_at(whole, old_cost, old_part, requests))
  rest = cost_at(rest, math.floor(requests / parts), requests % parts, parts) * ticks_per_us
  local owed = math.min(beyond + whole, TOKENS_MAX)
  local held = math.min(owed, tokens_max)
  return math.min(rest + cost_at(held, cost, part, parts), longest), owed - held
end

-- The debt of the state `of` seconds and `nanos` in microseconds, and the tokens that are owed beyond
-- the bucket, of which one that is full pays by whole tokens. A longer debt than `longest_us` is the
-- mistake of a clock.
local function ahead_by(of, nanos, beyond, longest_us, old_cost, old_part, requests)
  local us = (of - seconds) * 1000000 + math.ceil(nanos / 1000) - micros
  if us < 0 and beyond > 0 then
    beyond = beyond - earned_at(-us, 0, beyond, old_cost, old_part, requests)
  end
  return math.max(0, math.min(us, longest_us)), beyond
end

local function longest_us_of(beyond, capacity, old_cost, old_part, requests)
  if beyond > 0 or capacity == 0 then return CENTURY_US end
  return math.min((worth_at(capacity, old_cost, old_part, requests)) + 1, CENTURY_US)
end

-- What the state `of` seconds and `nanos` owes to this limit: the debt in ticks, the tokens and the
-- capacity beyond the bucket, whether the state is in the terms of another limit, and whether it stays
-- so, since this limit lends nothing or would cut the debt.
local function owed_by(of, nanos, requests, beyond, capacity)
  local same, is_excess = requests == parts, beyond == 0 and capacity > 0
  -- A difference above 2^53 is above the longest debt too.
  local ahead = (of - seconds) * ticks_per_second + math.ceil(nanos / tick)
  ahead = math.max(0, ahead - ticks_now)
  local old_cost, old_part = math.floor(window / requests), window % requests
  if tokens_min == 1 then
    local us = (of - seconds) * 1000000 + math.ceil(nanos / 1000) - micros
    if not same and us > 0 then
      ahead = (us - old_cost) * ticks_per_us + cost_at(1, cost, part, parts)
    end
    local debt = math.max(0, math.min(ahead, longest))
    return debt, 0, 0, debt > 0 and (not same or debt < ahead), false
  end
  local most = longest
  if is_excess then
    most = math.max(longest, math.min(cost_at(capacity, cost, part, parts), owed_max))
  end
  local is_own = same and ahead <= most and tokens_max > 0
  if is_own and beyond == 0 then return ahead, beyond, capacity, false, false end
  local longest_us = longest_us_of(beyond, capacity, old_cost, old_part, requests)
  local us
  us, beyond = ahead_by(of, nanos, beyond, longest_us, old_cost, old_part, requests)
  if tokens_max == 0 and (ahead > 0 or beyond > 0) then return owed_max, beyond, capacity, false, true end
  if is_own and (beyond == 0 or capacity >= tokens_max) then return ahead, beyond, capacity, false, false end
  if is_excess then
    local held, more = owed_in_tokens(us, 0, old_cost, old_part, requests)
    if not same and held + cost_at(more, cost, part, parts) > owed_max then
      return owed_max, beyond, capacity, false, true
    end
    local debt = with_owed(held, 0, more)
    return debt, 0, 0, held > 0 or more > 0, false
  end
  local debt, more = owed_in_tokens(us, beyond, old_cost, old_part, requests)
  return debt, more, tokens_max, debt > 0 or more > 0, false
end

-- Writes a state; the nanoseconds are below a second.
local function write(of, nanos, requests, beyond, capacity)
  local mark = math.max(requests, beyond, capacity) < BITS_32 and ':' or '='
  local state = string.format('%d%09d%s%x', of, nanos, mark, requests)
  -- A second past the time, as the clock that expires keys may differ from TIME.
  local expires = (of + 1) * 1000 + math.ceil(nanos / 1000000)
  if beyond > 0 or capacity > 0 then
    state = state .. string.format(':%d:%d', beyond, capacity)
    expires = expires + math.min(math.ceil(beyond * (window / 1000) / requests), CENTURY_US / 1000)
  end
  redis.call('SET', KEYS[1], state, 'PXAT', expires)
end

local is_returned = back and (not lent_at or math.abs(now - lent_at) <= ttl)
local stored, beyond, capacity, converted, is_kept = 0, 0, 0, false, false
local value = redis.call('GET', KEYS[1])
if value then
  local of, nanos, rest = value:match('^(%d%d%d%d%d%d%d%d%d%d)(%d%d%d%d%d%d%d%d%d)(.*)$')
  local requests, more, held
  if of and rest ~= '' then
    requests, more, held = rest:match('^[:=]([1-9a-f]%x*):?(%d*):?(%d*)$')
    if not requests then of = nil end
  end
  if not of then
    local code = value:sub(1, 6) == 'moved ' and 'RENAMED ' or 'FOREIGN '
    return redis.error_reply(code .. KEYS[1] .. ' holds no time of ratelease')
  end
  of, nanos, requests = tonumber(of), tonumber(nanos), requests and tonumber(requests, 16) or parts
  more, held = tonumber(more) or 0, tonumber(held) or 0
  stored, beyond, capacity, converted, is_kept = owed_by(of, nanos, requests, more, held)
  local is_excess, lends_nothing = more == 0 and held > 0, want == 0 and need == 0 and owed == 0
  if is_kept or ((converted or is_excess) and lends_nothing) then
    -- A look, or a pure return, at a state of another limit, or of costs that exceed a bucket: the
    -- state stays in the terms of the limit that wrote it. So it does under a limit that lends
    -- nothing, or that would cut the debt.
    local old_cost, old_part = math.floor(window / requests), window % requests
    local longest_us, is_changed = longest_us_of(more, held, old_cost, old_part, requests), is_returned
    if not lends_nothing and (of - seconds) * 1000000 + nanos / 1000 - micros > longest_us then
      local us = seconds * 1000000 + micros + longest_us
      of, nanos, is_changed = math.floor(us / 1000000), us % 1000000 * 1000, true
    end
    if is_returned then
      local us = of * 1000000 - worth_at(math.max(0, back - more), old_cost, old_part, requests) + math.floor(nanos / 1000)
      us = math.max(us, 1000000000000000)
      of, nanos = math.floor(us / 1000000), us % 1000000 * 1000 + nanos % 1000
      if more > 0 and more <= back then held = 0 end
      more = math.max(0, more - back)
    end
    if owed > 0 then
      longest_us = longest_us_of(more, held, old_cost, old_part, requests)
      local us, beyond_it = ahead_by(of, nanos, more, longest_us, old_cost, old_part, requests)
      local all = math.min(owed, TOKENS_MAX) + beyond_it
      us = math.min(us + cost_at(all, old_cost, old_part, requests), CENTURY_US)
      held = math.min(earned_at(us, 0, TOKENS_MAX, old_cost, old_part, requests) + 1, TOKENS_MAX)
      us = us + now
      of, nanos, more, is_changed = math.floor(us / 1000000), us % 1000000 * 1000, 0, true
    end
    if is_changed then
      write(of, nanos, requests, more, held)
      stored = owed_by(of, nanos, requests, more, held)
    end
    return { 0, now, stored, stored }
  end
end

local before, beyond_after = stored, beyond
if is_returned then
  -- It pays first what no bucket of this size would have leased.
  beyond_after = math.max(0, beyond - back)
  back = math.max(0, back - beyond)
  if back >= tokens_max and before <= debt_max then
    before = 0
  else
    before = math.max(0, before - (worth_at(back, cost, part, parts)))
  end
end
before, beyond_after = with_owed(before, beyond_after, owed)
local left = left_of(before)
local tokens, spent = 0, 0
if need <= left then
  tokens = math.min(math.max(want, need), left)
  spent = tokens
elseif ARGV[3] == '1' then
  spent = left
end
local after = before + cost_at(spent, cost, part, parts)

-- A state of another limit, or a debt that was cut, is written in the terms of this limit. No call creates a key that means
-- the same as its absence.
if after ~= stored or beyond_after ~= beyond or converted then
  local ticks = ticks_now + after
  if beyond_after == 0 then capacity = excess_of(after) end
  write(seconds + math.floor(ticks / ticks_per_second), ticks % ticks_per_second * tick, parts, beyond_after, capacity)
end
return { tokens, now, before, after }
