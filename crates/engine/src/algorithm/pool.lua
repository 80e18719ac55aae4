-- One step of a pool of a split key: the same sums as `pool.rs`, one key per call.
--
--   KEYS[1]  the key
--   ARGV     want, need, whether epochs are windows (0 or 1),
--            and, only if tokens are put in: their number (from 1), the epoch of their lease, the
--            milliseconds until it ends (from 1)
--   reply    tokens, tokens left, the epoch of both, milliseconds until they end (0 without any)
--
-- Lua's numbers are doubles, exact up to 2^53. The caller clamps epochs and tokens to less than that,
-- and want and need to it.
--
-- The state is a decimal epoch, a colon, and at least ten digits of tokens. With more digits, versions
-- that count up to 2^32 take it for a foreign value. The pool ends with the key's
-- expiry, which only this server measures, so that no master's clock is compared with another's.
-- A step that leaves the end alone writes with KEEPTTL: setting the value of PTTL would delay the end
-- by a millisecond now and then. PTTL rounds the time down, so at least a
-- millisecond less remains. The only command that writes is the last one, so a script that fails has
-- changed nothing.
local key = KEYS[1]
local want, need = tonumber(ARGV[1]), tonumber(ARGV[2])
local put, of, lasts = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local TOKENS_MAX = 9007199254740991

local stored, epoch, ends = 0, 0, 0
local value = redis.call('GET', key)
if value then
  local at, tokens = value:match('^(%d+):(%d%d%d%d%d%d%d%d%d%d+)$')
  if not at or #at > 16 then
    return redis.error_reply('FOREIGN ' .. key .. ' holds no pool of ratelease')
  end
  -- A value without an expiry (below 0) lends nothing: the end of its leases is unknown.
  local rest = redis.call('PTTL', key) - 1
  if rest > 0 and tonumber(tokens) > 0 then
    stored, epoch, ends = math.min(tonumber(tokens), TOKENS_MAX), tonumber(at), rest
  end
end

local held, kept = stored, true
if put and (stored == 0 or (ARGV[3] == '1' and of > epoch)) then
  held, epoch, ends, kept = put, of, lasts, false
elseif put and (ARGV[3] == '0' or of == epoch) then
  held, epoch = math.min(stored + put, TOKENS_MAX), math.min(epoch, of)
  if lasts <= ends then ends, kept = lasts, false end
end
local tokens = 0
if need <= held then tokens = math.min(math.max(want, need), held) end
local left = held - tokens

-- A look writes nothing, and no call creates a key that means the same as its absence.
if left == 0 then
  if value then redis.call('DEL', key) end
elseif put or tokens > 0 then
  local state = string.format('%d:%010d', epoch, left)
  if kept then
    redis.call('SET', key, state, 'KEEPTTL')
  else
    redis.call('SET', key, state, 'PX', ends)
  end
end
return { tokens, left, epoch, ends }
