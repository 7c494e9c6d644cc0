# One trial. Variables: seconds, reads (of one busy phase), phases (words: on, off), settle, seed, service, nodes, cg
# (their group), with (before their commands), protect (arguments of berth protect; "": none), rbps, wbps; functions:
# lines (what an admin types); of slurm.sh: job, class. Prints one JSON object.
q=/sys/block/vdb/queue
dev=$(cat /sys/block/vdb/dev)
usual=$(sed 's/.*\[\(.*\)\].*/\1/' $q/scheduler)

# count prints what the nodes' groups have used: time now, microseconds of CPU, bytes read and written.
count() {
	cat $cg/*/cpu.stat $cg/*/io.stat 2>/dev/null | awk -v at="$(date +%s.%N)" '
		$1 == "usage_usec" { cpu += $2 }
		{ for (i = 2; i <= NF; i++) { if (sub(/^rbytes=/, "", $i)) r += $i; else if (sub(/^wbytes=/, "", $i)) w += $i } }
		END { printf "{\"At\": %s, \"CPU\": %.0f, \"Read\": %.0f, \"Written\": %.0f}", at, cpu, r, w }'
}

# work is what the nodes do until they are stopped: each burns CPU; the first reads at random, the second writes.
work() {
	[ -z "$job" ] || { submit; return; }
	for n in ${nodes}1 ${nodes}2; do
		berth exec $n -- $with sh -c 'while :; do :; done' &
	done
	common="--thread --direct=1 --ioengine=libaio --iodepth=16 --time_based --runtime=600 --output-format=terse"
	berth exec ${nodes}1 -- $with fio --name=r --filename=/srv/slow/batch/r --rw=randread --bs=64k $common &
	berth exec ${nodes}2 -- $with fio --name=w --filename=/srv/slow/batch/w --rw=write --bs=256k $common &
	wait
}

# moved prints what the nodes have read and written.
moved() {
	cat $cg/*/io.stat 2>/dev/null | awk '{ for (i = 2; i <= NF; i++) { if (sub(/^rbytes=/, "", $i)) r += $i; else if (sub(/^wbytes=/, "", $i)) w += $i } }
		END { printf "%.0f %.0f", r, w }'
}

# await waits until the nodes read and write. Where they have little of the CPU, it takes them seconds to begin.
await() {
	for _ in $(seq 300); do
		read -r r w <<<"$(moved)"
		((r > $1 && w > $2)) && return
		sleep 0.2
	done
	echo "the nodes neither read nor write after a minute" >&2
	return 1
}

# stop ends the nodes' work, and not the nodes: their first process is a sleep.
stop() {
	[ -z "$job" ] || { cancel; return; }
	find $cg -name cgroup.procs -exec cat {} + | while read -r p; do
		case $(cat /proc/$p/comm 2>/dev/null) in fio | sh) kill -KILL $p || true ;; esac
	done
	wait $worker || true
}

# state says what the kernel has, so that a trial is known to be what its arm says.
state() {
	echo -n "scheduler $(sed 's/.*\[\(.*\)\].*/\1/' $q/scheduler)"
	echo -n ", strict $(cat $q/iosched/strict_guarantees 2>/dev/null || echo -)"
	echo -n ", iocost $(sed -n "s/^$dev .*enable=\([01]\).*/\1/p" /sys/fs/cgroup/io.cost.qos | grep . || echo 0)"
	[ -z "$nodes" ] || echo -n ", cpu.weight $(cat $cg/cpu.weight) idle $(cat $cg/cpu.idle), io.weight $(head -1 $cg/io.weight | cut -d' ' -f2)," \
		"bfq $(head -1 $cg/io.bfq.weight 2>/dev/null | sed 's/default //' || echo -), io.max $(sed -n "s/^$dev //p" $cg/io.max)"
}

# settled waits until nothing of this trial is left to be written, ten seconds at the most, and prints how long that took.
settled() {
	local began=$EPOCHREALTIME
	sync
	for _ in $(seq 100); do
		read -r r w </sys/block/vdb/inflight
		dirty=$(awk '/^(Dirty|Writeback):/ { kb += $2 } END { print kb }' /proc/meminfo)
		((r + w == 0 && dirty < 1024)) && break
		sleep 0.1
	done
	awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.2f", b - a }'
}

cleanup() {
	if [ -n "$worker" ]; then stop; fi
	if [ -n "$protect" ]; then berth unprotect $service; fi
	if [ -z "$nodes" ]; then return; fi
	echo "$dev rbps=max wbps=max riops=max wiops=max" >$cg/io.max
	if [ "$nodes" = plain ]; then echo 100 >$cg/cpu.weight; fi
	[ "$usual" = "$(sed 's/.*\[\(.*\)\].*/\1/' $q/scheduler)" ] || echo "$usual" >$q/scheduler
	for g in $cg /sys/fs/cgroup/system.slice; do
		if [ "$nodes" = plain ] && [ -e $g/io.bfq.weight ]; then echo 100 >$g/io.bfq.weight; fi
	done
}

exec 3>&1 1>/dev/null
worker=
[ -z "$job" ] || ready
trap cleanup EXIT
if [ -n "$protect" ]; then eval "berth protect $service $protect"; fi
lines
is=$(state)
if [ -n "$nodes" ]; then
	before=$(moved)
	work 2>/dev/null &
	worker=$!
	await $before
fi
sleep $settle
echo 1 >/proc/sys/vm/drop_caches
skip=0 all=
for phase in $phases; do
	before=$(count)
	client=null
	if [ $phase = on ]; then
		# The client stands for one on another machine: the nodes must not take its CPU.
		client=$(chrt -f 10 xrdread -reads $reads -time ${seconds}s -seed $seed -skip $skip /data/f)
		skip=$((skip + reads))
	else
		sleep $seconds
	fi
	all="$all${all:+, }{\"Before\": $before, \"After\": $(count), \"Client\": $client}"
done
trap - EXIT
cleanup
printf '{"State": "%s", "Settled": %s, "Phases": [%s]}' "$is" "$(settled)" "$all" >&3
