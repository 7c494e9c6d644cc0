package debian

// noHost is the host's name while packages are installed: they write it into their configuration (/etc/mailname, postfix's main.cf, the
// comments of keys).
const noHost = "localhost"

// nameless is the hook that runs before packages other than the essential ones are configured: mmdebstrap has copied the host's name. It gives
// hooks the root as $1.
const nameless = `[ -L "$1/etc/hostname" ] || echo ` + noHost + ` >"$1/etc/hostname"`

// cleaning is the hook that runs at the end. It removes from the image whatever should belong to a single host (names, ids, and the keys
// that packages' scripts made), since many nodes share an image, and everyone who pulls it can read its files. Keys that are not PEM are
// listed by name; every private PEM key in a place where scripts write was made during the build. find and grep follow no link out of the
// root.
//
// An empty machine-id is made anew by systemd at the first boot (machine-id(5)).
const cleaning = `set -e
cd "$1"
for f in resolv.conf hostname machine-id; do [ -L etc/$f ] || : >etc/$f; done
find etc var root -type f \( -path 'etc/ssh/ssh_host_*' -o -path etc/ssl/private/ssl-cert-snakeoil.key -o -path etc/ssl/certs/ssl-cert-snakeoil.pem \
	-o -path etc/munge/munge.key -o -path 'etc/dropbear/dropbear_*_host_key' -o -path etc/bind/rndc.key -o -path 'etc/nvme/host*' \
	-o -path etc/iscsi/initiatorname.iscsi -o -path var/lib/dbus/machine-id -o -path var/lib/systemd/random-seed \
	-o -path var/lib/systemd/credential.secret \) -exec rm -f {} +
find etc -type l -lname '*ssl-cert-snakeoil.pem' -exec rm -f {} +
find etc var root -path var/lib/dpkg -prune -o -type f -exec grep -lZ -e '^-----BEGIN [A-Z ]*PRIVATE KEY-----' {} + | xargs -0r rm -f
if [ -e usr/sbin/sshd ] || [ -e usr/bin/dropbearkey ] || [ -e usr/sbin/make-ssl-cert ] || [ -e usr/sbin/rndc-confgen ]; then
	mkdir -p etc/systemd/system/sysinit.target.wants
	cat >etc/systemd/system/berth-keys.service <<'END'
` + keys + `END
	ln -sf ../berth-keys.service etc/systemd/system/sysinit.target.wants/
fi
`

// keys is the unit by which a node makes its own keys at its first start, by the means of the packages. Keys that a spec mounts stay. A key of
// munge is none of a node but of a site, so it is not made.
const keys = `[Unit]
Description=Keys of this node, which its image does not have
DefaultDependencies=no
After=local-fs.target
Before=sysinit.target shutdown.target
Conflicts=shutdown.target

[Service]
Type=oneshot
RemainAfterExit=yes
Environment=DEBIAN_FRONTEND=noninteractive
ExecStart=-/bin/sh -c '[ ! -x /usr/sbin/sshd ] || ssh-keygen -A'
ExecStart=-/bin/sh -c '[ ! -x /usr/sbin/make-ssl-cert ] || make-ssl-cert generate-default-snakeoil'
ExecStart=-/bin/sh -c '[ ! -x /usr/sbin/rndc-confgen ] || [ -s /etc/bind/rndc.key ] || rndc-confgen -a -u bind'
ExecStart=-/bin/sh -c '[ ! -x /usr/bin/dropbearkey ] || for t in rsa ecdsa ed25519; do f=/etc/dropbear/dropbear_$${t}_host_key; [ -s $$f ] || dropbearkey -t $$t -f $$f; done'
`
