#!/bin/sh
# Installs hyperkube from the files of a release: from a directory, which needs no network, or from a URL. It verifies
# the checksum before it changes anything.
set -eu

usage() {
	cat <<'END'
usage: install.sh [--from DIR | --url URL] [--prefix DIR]
       install.sh --uninstall [--purge] [--prefix DIR]

  --from DIR     Install from a directory that contains SHA256SUMS and the archive for this machine.
                 Defaults to the directory of this script.
  --url URL      Download SHA256SUMS and the archive from below this URL.
  --prefix DIR   Install below this directory instead of /usr/local.
  --uninstall    Stop the cluster on this machine and remove the installed files. The cluster's data stays.
  --purge        With --uninstall: also delete the cluster's data.

Set DESTDIR to install below another root directory, for example to build an image of a machine. Then no service is
stopped or restarted.
END
}

fail() {
	echo "install.sh: $*" >&2
	exit 1
}

from= url= prefix=/usr/local uninstall= purge=
while [ $# -gt 0 ]; do
	case "$1" in
	--from | --url | --prefix)
		[ $# -gt 1 ] || fail "$1 needs a value"
		case "$1" in
		--from) from=$2 ;;
		--url) url=$2 ;;
		--prefix) prefix=$2 ;;
		esac
		shift
		;;
	--uninstall) uninstall=1 ;;
	--purge) purge=1 ;;
	-h | --help)
		usage
		exit 0
		;;
	*)
		usage >&2
		fail "unknown argument $1"
		;;
	esac
	shift
done
[ -z "$from" ] || [ -z "$url" ] || fail "--from and --url exclude each other"
[ -z "$purge" ] || [ -n "$uninstall" ] || fail "--purge needs --uninstall"
case "$prefix" in
/*) ;;
*) fail "--prefix must be an absolute path" ;;
esac

destdir=${DESTDIR:-}
root=$destdir$prefix
unit=/etc/systemd/system/hyperkube.service
list=$prefix/share/doc/hyperkube/installed-files
[ -n "$destdir" ] || [ "$(id -u)" = 0 ] || fail "must be run as root; use sudo"

# with_systemd COMMAND... runs systemctl on machines that run systemd.
with_systemd() {
	if [ -z "$destdir" ] && [ -d /run/systemd/system ] && command -v systemctl >/dev/null; then
		systemctl "$@"
	fi
}

# remove_files LIST [NEW] removes the files in LIST that are not in NEW, and directories that are empty then.
remove_files() {
	while read -r file; do
		if [ -n "${2:-}" ] && grep -Fqx "$file" "$2"; then
			continue
		fi
		rm -f "$destdir$file"
		dir=$(dirname "$file")
		while [ "$dir" != "$prefix" ] && [ "${#dir}" -gt "${#prefix}" ] && rmdir "$destdir$dir" 2>/dev/null; do
			dir=$(dirname "$dir")
		done
	done <"$1"
}

if [ -n "$uninstall" ]; then
	[ -e "$destdir$list" ] || fail "hyperkube is not installed below $prefix by this script"
	if [ -z "$destdir" ]; then
		if command -v systemctl >/dev/null && [ -e "$unit" ]; then
			with_systemd stop hyperkube.service
			systemctl disable --quiet hyperkube.service || true
		fi
		action=down
		[ -z "$purge" ] || action=reset
		if [ -d /var/lib/hyperkube ] || [ -n "$purge" ]; then
			"$root/bin/hyperkube" "$action" || fail "the cluster on this machine could not be stopped; nothing was removed"
		fi
	fi
	temporary=$(mktemp)
	trap 'rm -f "$temporary"' EXIT
	cp "$destdir$list" "$temporary"
	remove_files "$temporary"
	with_systemd daemon-reload
	echo "removed hyperkube from $prefix"
	[ -n "$purge" ] || [ ! -d "$destdir/var/lib/hyperkube" ] || echo "the data of the cluster is still in /var/lib/hyperkube"
	exit 0
fi

case "$(uname -m)" in
x86_64 | amd64) arch=amd64 ;;
aarch64 | arm64) arch=arm64 ;;
*) fail "there is no release for the architecture $(uname -m)" ;;
esac

temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
fetch() { # FILE: downloads it to the temporary directory
	if command -v curl >/dev/null; then
		curl -fsSL -o "$temporary/$1" "${url%/}/$1"
	elif command -v wget >/dev/null; then
		wget -q -O "$temporary/$1" "${url%/}/$1"
	else
		fail "--url needs curl or wget"
	fi || fail "downloading ${url%/}/$1 failed"
}
if [ -n "$url" ]; then
	fetch SHA256SUMS
	from=$temporary
else
	[ -n "$from" ] || from=$(cd "$(dirname "$0")" && pwd)
	[ -e "$from/SHA256SUMS" ] || fail "$from does not contain SHA256SUMS; specify the directory of a release with --from"
fi
line=$(grep -E "^[0-9a-f]{64}  hyperkube-[^/ ]*-linux-$arch\.tar\.gz\$" "$from/SHA256SUMS") ||
	fail "SHA256SUMS does not list an archive for linux-$arch"
[ "$(printf '%s\n' "$line" | wc -l)" -eq 1 ] || fail "SHA256SUMS lists more than one archive for linux-$arch"
archive=${line##* }
[ -z "$url" ] || fetch "$archive"
[ -e "$from/$archive" ] || fail "$from does not contain $archive"
# Verify and unpack the same bytes, even if the file changes meanwhile.
[ "$from" = "$temporary" ] || cp "$from/$archive" "$temporary/$archive"
[ "$(sha256sum <"$temporary/$archive" | cut -d ' ' -f 1)" = "${line%% *}" ] ||
	fail "the checksum of $archive does not match SHA256SUMS; nothing was installed"
mkdir "$temporary/root"
tar -xzf "$temporary/$archive" -C "$temporary/root"
tree=$temporary/root/${archive%.tar.gz}

# The unit is installed where systemd searches on all distributions, with the path of the program.
(cd "$tree" && find . -type f | sed 's|^\.||' | grep -v '^/lib/systemd/' | sort) >"$temporary/files"
while read -r file; do
	mkdir -p "$root$(dirname "$file")"
	mode=644
	[ "$file" != /bin/hyperkube ] || mode=755
	# A running program cannot be overwritten, but replaced.
	cp "$tree$file" "$root$file.new"
	chmod "$mode" "$root$file.new"
	mv -f "$root$file.new" "$root$file"
done <"$temporary/files"
sed "s|^|$prefix|" "$temporary/files" >"$temporary/list"
if [ -z "$destdir" ] && [ ! -d /etc/systemd/system ]; then
	: # no systemd
else
	mkdir -p "$destdir$(dirname "$unit")"
	sed "s|^ExecStart=/usr/bin/|ExecStart=$prefix/bin/|" "$tree/lib/systemd/system/hyperkube.service" >"$destdir$unit"
	chmod 644 "$destdir$unit"
	echo "$unit" >>"$temporary/list"
fi
# hyperkube is also kubectl, unless another one is installed.
kubectl=$prefix/bin/kubectl
if [ "$(readlink "$destdir$kubectl")" = hyperkube ]; then
	echo "$kubectl" >>"$temporary/list"
elif [ ! -e "$destdir$kubectl" ] && { [ -n "$destdir" ] || ! command -v kubectl >/dev/null; }; then
	ln -s hyperkube "$destdir$kubectl"
	echo "$kubectl" >>"$temporary/list"
fi
echo "$list" >>"$temporary/list"
[ ! -e "$destdir$list" ] || remove_files "$destdir$list" "$temporary/list"
cp "$temporary/list" "$destdir$list"

with_systemd daemon-reload
with_systemd try-restart hyperkube.service || echo "hyperkube.service did not restart; see: journalctl -u hyperkube" >&2
echo "installed ${archive%.tar.gz} below $prefix"
echo "To start a cluster, run: hyperkube up"
