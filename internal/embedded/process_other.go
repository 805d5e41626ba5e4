//go:build !linux

package embedded

import "syscall"

// childAttributes run a child as the account, in its own process group. There
// is no parent-death signal here: a killed parent leaves the server running
// until the next start on the same data directory stops it.
func childAttributes(a *account) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if a != nil {
		attr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid, Groups: a.groups}
	}
	return attr
}
