-- An order for one key: the pods forget its count, deny it for a time, or do so no longer.
--
--   KEYS[1]  the stream of orders
--   ARGV     the key as four words of 32 bits, 0 to reset, 1 to block or 2 to lift a block,
--            milliseconds until the order ends, most orders, milliseconds that the stream is kept
--            after its last order, who gives the order, and, to state a block once more: its place
--            in the stream, and when it was given
--   reply    the place of the order; nil if the block to state once more is not there
--
-- An entry has one field, `<key> <reset, block or lift> <end> <when it was given> <who gave it>`, with
-- times in milliseconds since 1970. The former entry of the same key makes room, and so do entries
-- that have ended or are no orders, if there is none else. They are kept as long as there is room: a
-- clock that was set forward may be set back. XADD comes last, so a script that fails has removed
-- nothing that was in force; pods that read the stream again find the blocks in force there.
local stream, words = KEYS[1], { tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]) }
local kinds = { ['0'] = 'reset', ['1'] = 'block', ['2'] = 'lift' }
local kind, key = kinds[ARGV[5]], string.format('%08x%08x%08x%08x', words[1], words[2], words[3], words[4])
local most, kept, by, stated, given = tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9], ARGV[10], ARGV[11]
-- No order lasts half as long: twice 366 days, in milliseconds.
local LASTS_MAX = 63244800000
-- Places of one XDEL: Lua's stack holds some 8000.
local XDEL_MAX = 1000
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local ends = now + tonumber(ARGV[6])

local last, former, ended, in_force, is_there = ends, {}, {}, 0, false
local is_foreign, are_orders = false, false
for _, entry in ipairs(redis.call('XRANGE', stream, '-', '+')) do
  local of, what, till = (entry[2][2] or ''):match('^(%x+) (%a+) (%d+)')
  till = tonumber(till)
  if not till or till - tonumber(entry[1]:match('^%d+')) > LASTS_MAX then
    is_foreign = is_foreign or entry[2][1] ~= 'order'
    ended[#ended + 1] = entry[1]
  else
    are_orders = true
    is_there = is_there or (entry[1] == stated and of == key)
    if of == key and (what == 'reset') == (kind == 'reset') then
      former[#former + 1] = entry[1]
    else
      if till <= now then ended[#ended + 1] = entry[1] else in_force = in_force + 1 end
      last = math.max(last, till)
    end
  end
end
if is_foreign and not are_orders then
  return redis.error_reply('FOREIGN ' .. stream .. ' holds no orders of ratelease')
end
if stated and not is_there then return false end
if in_force >= most then
  return redis.error_reply('FULL ' .. stream .. ' holds ' .. most .. ' orders that have not ended')
end
for at = 1, in_force + #ended + 1 - most do former[#former + 1] = ended[at] end
for from = 1, #former, XDEL_MAX do
  redis.call('XDEL', stream, unpack(former, from, math.min(from + XDEL_MAX - 1, #former)))
end
local text = string.format('%s %s %.0f %s ', key, kind, ends, given or string.format('%.0f', now)) .. by
local place = redis.call('XADD', stream, '*', 'order', text)
redis.call('PEXPIREAT', stream, string.format('%.0f', last + kept))
return place
