"""Faults of the sandbox VM: what its guest costs the host, and what leads out of the project."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

READY = "unit/test_vm_ready.py"
IMAGES = ("unit/test_vm_images.py::test_an_image_that_leads_to_other_files_is_refused",)

MUTANTS = (
    Mutant(
        "relay-takes-no-slot",
        "the guest starts as many relays on the host as it likes",
        "vm/relay.py",
        "    if not _take_slot(slots):\n",
        "    if _take_slot(slots) is None:\n",
        ("unit/test_vm_relay.py::test_there_is_a_limit_of_relays_and_each_that_ends_makes_room",),
    ),
    Mutant(
        "relay-buffers-have-no-limit",
        "each connection that takes nothing costs the host megabytes of kernel memory",
        "vm/relay.py",
        "        peer.setsockopt(socket.SOL_SOCKET, buffer, BUFFER)\n",
        "        peer.getsockopt(socket.SOL_SOCKET, buffer)\n",
        ("unit/test_vm_relay.py::test_the_kernel_keeps_little_of_what_the_guest_does_not_take",),
    ),
    Mutant(
        "relay-waits-for-ever",
        "a relay hangs for as long as the guest takes nothing",
        "vm/relay.py",
        "poller.poll(STALL_LIMIT * 1000 if to_guest else None)",
        "poller.poll(None)",
        ("unit/test_vm_relay.py",),
    ),
    Mutant(
        "image-follows-a-backing-file",
        "an image shows the guest any file of the user's",
        "vm/images.py",
        'found.get("backing-filename") or ',
        "",
        IMAGES,
    ),
    Mutant(
        "image-follows-a-data-file",
        "an image shows the guest any file of the user's, as its data file",
        "vm/images.py",
        '    other = found.get("backing-filename") or _data_file(found)\n',
        '    other = found.get("backing-filename")\n',
        IMAGES,
    ),
    Mutant(
        "image-is-looked-at-once",
        "an image that leads to other files is taken once there is a disk over it",
        "vm/images.py",
        "        _checked(image, over)\n        return\n",
        "        return\n",
        IMAGES,
    ),
    Mutant(
        "ready-disk-leads-elsewhere",
        "a ready disk shows guests any file of the user's",
        "vm/images.py",
        'found["format"] != "qcow2" or leads_to != [image.disk]',
        'found["format"] != "qcow2"',
        (f"{READY}::test_a_ready_disk_that_leads_to_other_files_is_refused",),
    ),
    Mutant(
        "ready-disk-over-a-changed-image",
        "a VM goes on over an image that has changed below it",
        "vm/ready.py",
        "(found.st_size, found.st_mtime_ns) != (size, time)",
        "False",
        (f"{READY}::test_an_image_that_has_changed_below_a_vm_is_refused",),
    ),
    Mutant(
        "ready-disk-can-be-written",
        "what all VMs start from can be written by mistake",
        "vm/ready.py",
        "    os.chmod(state.disk, 0o400)\n",
        "",
        (f"{READY}::test_a_disk_is_made_once_and_nobody_writes_it",),
    ),
    Mutant(
        "ready-disk-with-a-vms-authority",
        "the disk that all VMs start from trusts the authority of the proxy that set it up",
        "vm/provision.py",
        '_guest_settings(settings, None, (), "", units)',
        '_guest_settings(settings, seed.LABEL, (), "", units)',
        ("unit/test_vm_seed.py::test_a_disk_that_vms_share_is_given_nothing_of_a_vm",),
    ),
    Mutant(
        "ready-disk-is-made-twice",
        "two starts set the same guest up at a time, in one directory",
        "vm/ready.py",
        "            if at(place) is None:\n",
        "            if at(place) is None or True:\n",
        (f"{READY}::test_two_that_need_a_disk_make_it_once",),
    ),
    Mutant(
        "prune-deletes-what-a-vm-needs",
        "an existing VM loses the disk below its own",
        "vm/image_store.py",
        "if base == disk.disk)",
        "if base != disk.disk)",
        (f"{READY}::test_only_what_no_vm_uses_is_deleted",),
    ),
    Mutant(
        "prune-does-not-wait",
        "a new VM loses the disk that it is about to be made over",
        "vm/image_store.py",
        "fcntl.LOCK_EX, ",
        "fcntl.LOCK_SH, ",
        (f"{READY}::test_nothing_is_deleted_while_a_disk_is_made",),
    ),
    Mutant(
        "environment-leads-into-the-project",
        "a variable names the agent's code or authorities for programs on the host",
        "vm/trusted_programs.py",
        "    _check_environment(project)\n",
        "",
        ("unit/test_vm_trusted_programs.py::test_no_variable_may_lead_into_the_project",),
    ),
    Mutant(
        "guest-output-is-kept-whole",
        "the guest fills the host's memory while it is set up",
        "vm/boot.py",
        "(said + part)[-_MAX_SAID:]",
        "said + part",
        ("unit/test_vm_command.py::test_only_the_end_of_what_a_guest_says_is_kept",),
    ),
)
