# Variable: kinds, those of the nodes that are needed.
# Makes the scene: a file system on the disk, XRootD that serves a file from it, and pairs of nodes that work on it.
exec 2>&1
mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 /dev/vdb
mkdir -p /srv/slow
mount -o noatime /dev/vdb /srv/slow
mkdir -p /srv/slow/data /srv/slow/batch
for f in data/f:512 batch/r:256 batch/w:256; do
	dd if=/dev/zero of=/srv/slow/${f%:*} bs=1M count=${f#*:} conv=fsync status=none
done
chown -R xrootd:xrootd /srv/slow/data
chmod 777 /srv/slow/batch
chmod 666 /srv/slow/batch/*
ip link set lo up
timeout 60 systemctl is-system-running --wait || true # what a boot does must not stand beside the first trials
modprobe bfq # its weights are there, or not, in all trials alike
echo "127.0.0.1 localhost $(hostname)" >/etc/hosts # XRootD looks its own name up
cat >/etc/xrootd/xrootd-headline.cfg <<E
all.export /data
oss.localroot /srv/slow
xrd.port 1094
E
systemctl start xrootd@headline.service
for i in $(seq 100); do
	xrdread -reads 2 -time 100ms /data/f >/dev/null 2>&1 && break
	sleep 0.2
done
xrdread -reads 25 -time 1s /data/f >/dev/null
# Two nodes of each kind. Of class batch, "cpu" has the idle CPU alone, "disk" all but that.
for kind in plain 'batch:class: batch' 'cpu:cpu: {idle: true}' 'disk:class: batch|cpu: {idle: false}'; do
	case " $kinds " in *" ${kind%%:*} "*) ;; *) continue ;; esac
	for n in ${kind%%:*}1 ${kind%%:*}2; do
		says=
		case $kind in *:*) says=${kind#*:} ;; esac
		printf '%s\n' "name: $n" 'image: host' 'command: [sleep, infinity]' "${says/|/$'\n'}" \
			'mounts: [{source: /srv/slow/batch, target: /srv/slow/batch, map: identity}]' >/root/$n.yaml
		berth apply -f /root/$n.yaml
	done
done
case " $kinds " in *" slurm "*) slurm ;; esac
