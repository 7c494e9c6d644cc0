# One trial. Variables: trial (seconds), arm, settle, rate, seed, service, engine, model ("": none). Prints one JSON object.
case $arm in
unprotected) nodes="plain1 plain2" groups=/sys/fs/cgroup/berth ;;
protected) nodes="batch1 batch2" groups=/sys/fs/cgroup/berth.batch ;;
*) nodes= groups=/nowhere ;;
esac
total=$((trial + 6))

# count prints what the nodes' groups have used: time now, microseconds of CPU, bytes read and written.
count() {
	cat $groups/*/cpu.stat $groups/*/io.stat 2>/dev/null | awk -v at="$(date +%s.%N)" '
		$1 == "usage_usec" { cpu += $2 }
		{ for (i = 2; i <= NF; i++) { if (sub(/^rbytes=/, "", $i)) r += $i; else if (sub(/^wbytes=/, "", $i)) w += $i } }
		END { printf "{\"At\": %s, \"CPU\": %.0f, \"Read\": %.0f, \"Written\": %.0f}", at, cpu, r, w }'
}

# work is what the nodes do: each burns CPU; the first reads at random, the second writes.
work() {
	set -- $1 $2
	for n in "$@"; do
		berth exec $n -- timeout $total sh -c 'while :; do :; done' &
	done
	common="--thread --direct=1 --ioengine=libaio --iodepth=16 --time_based --runtime=$total --output-format=terse"
	berth exec $1 -- fio --name=r --filename=/srv/slow/batch/r --rw=randread --bs=64k $common &
	berth exec $2 -- fio --name=w --filename=/srv/slow/batch/w --rw=write --bs=256k $common &
	wait
}

exec 3>&1 1>/dev/null
if [ "$arm" = protected ]; then
	berth protect $service --disk /srv/slow --engine $engine ${model:+--model "$model"}
	trap "berth unprotect $service" EXIT
fi
worker=
if [ -n "$nodes" ]; then
	work $nodes 2>/dev/null &
	worker=$!
fi
sleep $settle
echo 1 >/proc/sys/vm/drop_caches
before=$(count)
# The client stands for one on another machine: the nodes must not take its CPU.
client=$(chrt -f 10 xrdread -rate $rate -time ${trial}s -seed $seed /data/f)
after=$(count)
[ -z "$worker" ] || wait $worker || true
sync
printf '{"Before": %s, "After": %s, "Client": %s}' "$before" "$after" "$client" >&3
