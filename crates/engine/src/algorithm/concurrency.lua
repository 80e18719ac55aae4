-- One step of a count of slots: the same as `concurrency.rs`, one key per call.
--
--   KEYS[1]  the key
--   ARGV     want, need, charge a denial (0 or 1) and hits that are owed (both mean nothing here),
--            limit, the time after which a silent pod is forgotten and the longest time without asks
--            (both in milliseconds),
--            and, unless the ask only looks: the pod's number as two halves, the slots that it holds,
--            the number of the ask among those of the pod, that of the first ask whose reply may still
--            bring slots (or its own), and the slots that the pod has received since
--   reply    slots lent, the time in microseconds, the slots of all pods, the pods that hold any, and 1
--            if a later ask of the pod came first, else 0
--
-- Lua's numbers are doubles, exact below 2^53: a time in microseconds is, until the year 2255, and
-- so is the sum of 1000 pods of less than 2^32 slots each.
--
-- The state is a text: a mark; the time of the last ask by the clock of the server and by that of the
-- key, in milliseconds, six bytes each; and for each pod that holds slots its number (eight bytes),
-- its slots (four), the key's time of its last ask (six), the number of that (four), and the slots lent
-- since the first ask that was out then (four). A hash with a field for each pod takes as much up to 100
-- pods, and at 1000 pods more than twice as much, and 1.7 times the time.
-- Everything is read before the first write, so that a script that fails has changed nothing. If
-- Redis is out of memory, it refuses the first write.
local key = KEYS[1]
local want, need, limit = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[5])
local ttl, kept = tonumber(ARGV[6]), tonumber(ARGV[7])
local high, low, held, number = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
local since, received = tonumber(ARGV[12]), tonumber(ARGV[13])
local MARK, HEAD, EACH = 'slots2', 18, 26
-- Numbers of asks begin again at 0; half of them count as later.
local NUMBERS = 4294967296
local function is_before(one, other)
  local later = (other - one) % NUMBERS
  return later > 0 and later < NUMBERS / 2
end
local SLOTS_MAX, PODS_MAX = 4294967295, 1000
-- From this length on the pod's own part is written in its place, so that replicas need not be sent
-- the text of all pods with each ask.
local IN_PLACE = 1000
local unpack = struct.unpack

local time = redis.call('TIME')
local micros = tonumber(time[1]) * 1000000 + tonumber(time[2])
local now, at = math.floor(micros / 1000), 0
local value = redis.call('GET', key) or ''
if value ~= '' then
  if value:sub(1, #MARK) ~= MARK or (#value - HEAD) % EACH ~= 0 then
    local code = value:sub(1, 6) == 'moved ' and 'RENAMED ' or 'FOREIGN '
    return redis.error_reply(code .. key .. ' holds no slots of ratelease')
  end
  local asked, asked_at = unpack('>I6I6', value, #MARK + 1)
  if now >= asked + kept then
    value = ''
  else
    at = asked_at + math.max(0, math.min(ttl / 2, now - asked))
  end
end

-- The parts of the text that stay: those of other pods that have asked lately.
local parts, from, own_of_later, lent = {}, HEAD + 1, nil, 0
local others, pods, own, is_whole = 0, 0, nil, true
for start = HEAD + 1, #value, EACH do
  local pod_high, pod_low, slots, seen = unpack('>I4I4I4I6', value, start)
  local is_own = pod_low == low and pod_high == high
  if is_own then
    own = start
    if at - seen < ttl then
      local last, lent_then = unpack('>I4I4', value, start + 18)
      if is_before(number, last) then own_of_later = slots end
      if since ~= number and not is_before(last, since) then lent = lent_then end
    end
  end
  if is_own or at - seen >= ttl then
    is_whole = is_whole and is_own
    if from < start then parts[#parts + 1] = value:sub(from, start - 1) end
    from = start + EACH
  else
    others, pods = others + slots, pods + 1
  end
end
if not held then return { 0, micros, others, pods, 0 } end

-- What an ask states that arrives after a later one of its pod is out of date.
if own_of_later then return { 0, micros, others + own_of_later, pods + 1, 1 } end

-- One pod more than there is room for gets nothing, and is not written down.
if pods >= PODS_MAX then return { 0, micros, math.max(others, limit), pods, 0 } end

-- What was lent, and is still on its way to the pod, is the pod's.
held = math.min(held + math.max(0, lent - received), SLOTS_MAX)
local tokens, free = 0, math.max(0, limit - others - held)
if need <= free then tokens = math.min(math.max(want, need), free) end
-- What the pod has received was lent, also where the count was lost since.
held, lent = held + tokens, math.min(math.max(lent, received) + tokens, SLOTS_MAX)
local head, mine = MARK .. struct.pack('>I6I6', now, at), ''
if held > 0 then
  mine = struct.pack('>I4I4I4I6I4I4', high, low, held, at, number, lent)
  pods = pods + 1
end
if #value >= IN_PLACE and is_whole and (own ~= nil) == (held > 0) then
  redis.call('SETRANGE', key, 0, head)
  if own then redis.call('SETRANGE', key, own - 1, mine) end
  redis.call('PEXPIREAT', key, now + kept + 1000)
elseif pods > 0 then
  parts[#parts + 1] = value:sub(from) .. mine
  redis.call('SET', key, head .. table.concat(parts), 'PXAT', now + kept + 1000)
elseif value ~= '' then
  redis.call('DEL', key)
end
return { tokens, micros, others + held, pods, 0 }
