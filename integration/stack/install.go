package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// installDeadline bounds one installation, including the wait for another test binary that installs the same thing.
const installDeadline = 8 * time.Minute

// cacheFolder is where downloads are kept between runs: ONCEWARD_TEST_CACHE, else onceward-test in the user's cache. Root's
// own lies in a closed home folder that the accounts of the servers cannot pass, hence the machine's.
func cacheFolder() (string, error) {
	dir := os.Getenv("ONCEWARD_TEST_CACHE")
	switch {
	case dir != "":
	case os.Geteuid() == 0:
		dir = "/var/cache/onceward-test"
	default:
		base, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("no folder for downloads, set ONCEWARD_TEST_CACHE to one: %w", err)
		}
		dir = filepath.Join(base, "onceward-test")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("ONCEWARD_TEST_CACHE %q: %w", dir, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make the folder for downloads: %w", err)
	}
	return dir, nil
}

// exclusively runs f while no other test binary of this user installs anything.
func exclusively(ctx context.Context, f func(cache string) error) error {
	cache, err := cacheFolder()
	if err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(cache, "install.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("open the lock of the installations: %w", err)
	}
	defer lock.Close() // closing unlocks
	if err := poll(ctx, func(context.Context) error { return syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }); err != nil {
		return fmt.Errorf("wait for another test binary that installs: %w", err)
	}
	return f(cache)
}

// need is something that must be on the machine, and Debian's packages that bring it.
type need struct {
	what     string
	packages []string
	find     func() error // nil: it is there
	instead  string       // what else a person can do
}

// ensure installs what is missing. Only root can; others get the commands to run.
func (n need) ensure(ctx context.Context) error {
	if n.find() == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, installDeadline)
	defer cancel()
	return exclusively(ctx, func(string) error {
		missing := n.find() // another test binary may have brought it meanwhile
		if missing == nil {
			return nil
		}
		if os.Geteuid() != 0 {
			return n.instructions(missing)
		}
		if _, err := exec.LookPath("apt-get"); err != nil {
			return n.instructions(missing)
		}
		announcef("installing %s", strings.Join(n.packages, ", "))
		install := append([]string{"install", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300"}, n.packages...)
		for _, args := range [][]string{{"update", "-o", "DPkg::Lock::Timeout=300"}, install} {
			if err := aptGet(ctx, args...); err != nil {
				return errors.Join(n.instructions(missing), err)
			}
		}
		if err := n.find(); err != nil {
			return fmt.Errorf("apt-get installed %s, and still: %w", strings.Join(n.packages, ", "), err)
		}
		return nil
	})
}

func (n need) instructions(missing error) error {
	return fmt.Errorf("%s: %w. Run as root: apt-get update && apt-get install -y %s. Or %s", n.what, missing, strings.Join(n.packages, " "), n.instead)
}

// aptGet runs apt-get with its output in a file: a service that a package starts would hold a pipe open.
func aptGet(ctx context.Context, args ...string) error {
	out, err := os.CreateTemp("", "onceward-apt-*.log")
	if err != nil {
		return fmt.Errorf("make a file for apt-get's output: %w", err)
	}
	defer os.Remove(out.Name())
	defer out.Close()
	cmd := exec.CommandContext(ctx, "apt-get", args...)
	// RUNLEVEL=1 keeps invoke-rc.d from starting Debian's own cluster, which nothing here uses.
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1")
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(out.Name()) // the run's error says enough without it
		return fmt.Errorf("apt-get %s: %w\n%s", strings.Join(args, " "), err, text)
	}
	return nil
}

// onPath is a need's find for programs.
func onPath(programs ...string) func() error {
	return func() error {
		for _, p := range programs {
			if _, err := exec.LookPath(p); err != nil {
				return fmt.Errorf("no program %s", p)
			}
		}
		return nil
	}
}

// fetched returns the folder name in the cache, filled by fill if it isn't there yet. It appears under its name only when it
// is complete: an interrupted download is never taken for a good one.
func fetched(ctx context.Context, name string, fill func(ctx context.Context, dir string) error) (string, error) {
	cache, err := cacheFolder()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, name)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	ctx, cancel := context.WithTimeout(ctx, installDeadline)
	defer cancel()
	err = exclusively(ctx, func(cache string) error {
		if _, err := os.Stat(dir); err == nil {
			return nil
		}
		announcef("fetching %s", name)
		partial, err := os.MkdirTemp(cache, name+"-partial-*")
		if err != nil {
			return fmt.Errorf("make a folder for %s: %w", name, err)
		}
		defer os.RemoveAll(partial)
		if err := os.Chmod(partial, 0o755); err != nil {
			return fmt.Errorf("open the folder of %s to other accounts: %w", name, err)
		}
		if err := fill(ctx, partial); err != nil {
			return err
		}
		return os.Rename(partial, dir)
	})
	return dir, err
}

// maven runs mvn in a folder, quietly.
func maven(ctx context.Context, dir string, args ...string) error {
	cmd := exec.CommandContext(ctx, "mvn", append([]string{"-q", "-B"}, args...)...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("mvn %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}
